"""What is said of the tails of spectra."""

import numpy as np
import pandas as pd
import pytest

from layerlab.records.layer_names import EMBEDDING
from layerlab.report.findings.matrices import RULES
from layerlab.report.findings.rule import RuleData
from tests.report.findings.test_find import change, find, only
from tests.report.support.reading import LAYERS, content, frames


@pytest.mark.full
def test_an_exponent_is_outside_only_by_more_than_its_errors_and_where_the_tail_is_a_power():
    where = {"layer": 3, "matrix": "mlp.c_fc"}
    for own in ({"alpha": 7.5, "error": 1.0}, {"alpha": 7.5, "distance": 0.2}, {"alpha": np.nan}):
        assert find(content(), change(frames(), "matrices", where, **own)) == []
    some = change(frames(), "matrices", {"layer": [2, 3], "matrix": "mlp.c_fc"}, alpha=7.5)
    sentence = only(find(content(), some)).sentence
    assert sentence.startswith("Layer 2: the spectrum of mlp.c_fc falls with exponent 7.5, surely")
    assert sentence.endswith("so do 2 of 12 matrices")


def test_rows_of_tokens_without_use_are_a_remark_and_hide_no_unit_of_a_block():
    tables = frames()
    first = tables["matrices"].iloc[0]
    table = first.to_dict() | {"layer": EMBEDDING, "matrix": "embed_tokens", "dead_rows": 293}
    tables["matrices"] = pd.concat([tables["matrices"], pd.DataFrame([table])], ignore_index=True)
    assert only(find(content(), tables)).severity == "info"
    tables["matrices"].loc[tables["matrices"]["layer"] == LAYERS - 1, "dead_columns"] = 1
    finding = only(find(content(), tables))
    assert (finding.severity, finding.layer) == ("warning", LAYERS - 1)
    tables["matrices"]["layer"] = tables["matrices"]["layer"].replace(LAYERS - 1, LAYERS)  # a head
    assert only(find(content(), tables)).severity == "info"


@pytest.mark.parametrize(
    ("second", "said"),
    [(0.0, "none of 2 matrices differs from"), (0.5, "4 of 8 directions; 1 of 2 matrices differ")],
)
def test_a_checkpoint_that_is_the_other_one_is_told_to_be(second, said):
    where = {"layer": 0, "matrix": "mlp.c_fc", "full_rank": 8}
    rows = [{**where, "change": 0.0, "rank": 0}, {**where, "change": second, "rank": 4}]
    rule = next(one for one in RULES if one.name == "changed")
    read = RuleData(card={}, frames={"change": pd.DataFrame(rows)}, measures={})
    (found,) = rule.judge(read)
    assert said in found.sentence
