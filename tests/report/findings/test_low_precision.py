"""Findings on checkpoints that differ: which part is named, and what is said of it."""

import pandas as pd
import pytest

from layerlab.report.findings.low_precision import RULES
from layerlab.report.findings.rule import RuleData

COLUMNS = ("by", "part", "kl", "share", "saved", "flips", "change", "weights")


@pytest.mark.parametrize(("saved", "told"), [(0.25, "saves 25 %"), (-0.1, "saves nothing alone")])
def test_a_part_that_saves_nothing_alone_is_told_so(saved, told):
    rows = [
        ("all", "all weights", 0.1, 1.0, 1.0, 0.0, 0.1, 100),
        ("layer", "layer 0", 0.08, 0.8, saved, 0.0, 0.1, 50),
        ("layer", "layer 1", 0.01, 0.05, 0.3, 0.0, 0.1, 1),
    ]
    frames = {"swap": pd.DataFrame(rows, columns=list(COLUMNS))}
    rule = next(one for one in RULES if one.name == "swapped")
    (found,) = rule.judge(RuleData(card={}, frames=frames, measures={}))
    assert "the weights of layer 0, 50 % of those" in found.sentence
    assert told in found.advice
