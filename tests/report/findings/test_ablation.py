"""What is said of heads and sublayers that were taken out."""

import numpy as np

from tests.report.findings.test_find import change, find, only
from tests.report.reading import content, frames


def test_a_fall_within_its_errors_harms_nobody():
    where = {"layer": 3, "component": "head", "head": 2}
    for own in ({"change": -0.04, "error": 0.02}, {"change": -0.04, "error": np.nan}):
        assert find(content(), change(frames(), "ablation", where, **own)) == []
    few = change(frames(), "ablation", where, change=-0.04, error=0.001, texts=2)
    assert find(content(), few) == []


def test_parts_without_which_the_loss_rises_are_named_with_the_head_that_matters_most():
    tables = change(frames(), "ablation", {"layer": [1, 4], "component": "ffn"}, change=0.9)
    where = {"layer": 2, "component": "head", "head": 1}
    finding = only(find(content(), change(tables, "ablation", where, change=0.2)))
    assert finding.sentence.startswith("Layer 1: without its feed-forward the loss rises by 0.9 n")
    assert "and 1 more layer (4)" in finding.sentence
    assert "layer 2 head 1 matters the most: 0.2 nats" in finding.advice
