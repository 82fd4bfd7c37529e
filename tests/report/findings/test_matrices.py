"""What is said of the tails of spectra."""

import numpy as np
import pytest

from tests.report.findings.test_find import change, find, only
from tests.report.support.reading import content, frames


@pytest.mark.full
def test_an_exponent_is_outside_only_by_more_than_its_errors_and_where_the_tail_is_a_power():
    where = {"layer": 3, "matrix": "mlp.c_fc"}
    for own in ({"alpha": 7.5, "error": 1.0}, {"alpha": 7.5, "distance": 0.2}, {"alpha": np.nan}):
        assert find(content(), change(frames(), "matrices", where, **own)) == []
    some = change(frames(), "matrices", {"layer": [2, 3], "matrix": "mlp.c_fc"}, alpha=7.5)
    sentence = only(find(content(), some)).sentence
    assert sentence.startswith("Layer 2: the spectrum of mlp.c_fc falls with exponent 7.5, surely")
    assert sentence.endswith("so do 2 of 12 matrices")
