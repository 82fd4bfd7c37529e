"""What is said of saliency at earlier places of the word that is due again."""

import numpy as np
import pandas as pd
import pytest

from layerlab.records.layer_names import EMBEDDING
from layerlab.report.findings.induction import RULES
from layerlab.report.findings.rule import RuleData


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_a_share_is_held_against_that_of_an_even_spread(scale):
    """Two of eight tokens have half of the saliency; what another layer reads does not count."""
    embedding = pd.DataFrame({"l1": [3.0, 3.0, *[1.0] * 6], "earlier": [1.0, 1.0, *[0.0] * 6]})
    table = pd.concat([embedding.assign(layer=EMBEDDING), embedding.assign(layer=0, l1=9.0)])
    frames = {"saliency": table.assign(l1=scale * table["l1"])}
    (found,) = RULES[0].judge(RuleData(card={}, frames=frames, measures={}))
    assert found.value == pytest.approx(0.5 / (2 / 8)) and found.threshold == 1.0
    assert "50 % of the saliency" in found.sentence and ", 2 times" in found.sentence
    assert found.place.layer == EMBEDDING
    for changes in ({"earlier": 0.0}, {"l1": 0.0}, {"earlier": np.nan}):
        rule = RuleData(card={}, frames={"saliency": table.assign(**changes)}, measures={})
        assert not [*RULES[0].judge(rule)]
