"""What is said of heads and sublayers that were taken out."""

import numpy as np
import pytest

from layerlab.report.findings.ablation import RULES
from layerlab.report.findings.rule import RuleData
from tests.report.findings.test_find import change, find, only
from tests.report.support.reading import content, frames


@pytest.mark.full
def test_a_fall_within_its_errors_harms_nobody():
    where = {"layer": 3, "component": "head", "head": 2}
    for own in ({"change": -0.04, "error": 0.02}, {"change": -0.04, "error": np.nan}):
        assert find(content(), change(frames(), "ablation", where, **own)) == []
    few = change(frames(), "ablation", where, change=-0.04, error=0.001, texts=2)
    assert find(content(), few) == []


def test_the_lowest_of_many_heads_that_chance_moves_harms_nobody():
    (harmful,) = (rule for rule in RULES if rule.name == "harmful")
    table = frames()["ablation"].query("component == 'head'")
    found = 0
    for texts in np.random.default_rng(0).normal(size=(200, len(table), 4)):
        drawn = table.assign(change=texts.mean(1), error=texts.std(1, ddof=1) / 2)
        found += len([*harmful.judge(RuleData({}, {"ablation": drawn}, {}))])
    assert found <= 20  # 5 % of 200, and three standard errors more


def test_parts_without_which_the_loss_rises_are_named_with_the_head_that_matters_most():
    tables = change(frames(), "ablation", {"layer": [1, 4], "component": "ffn"}, change=0.9)
    where = {"layer": 2, "component": "head", "head": 1}
    finding = only(find(content(), change(tables, "ablation", where, change=0.2)))
    assert finding.sentence.startswith("Layer 1: without its feed-forward the loss rises by 0.9 n")
    assert "and 1 more layer (4)" in finding.sentence
    assert "layer 2 head 1 matters the most: 0.2 nats" in finding.advice


def test_of_heads_that_change_next_to_nothing_the_change_is_held_against_the_limit():
    where = {"layer": 3, "component": "head", "head": [1, 2]}
    finding = only(find(content(), change(frames(), "ablation", where, change=-1e-5)))
    assert (finding.value, finding.threshold) == (1e-5, 1e-3)
    said = "The loss changes by less than 0.001 nats without 2 of 24 heads, each taken out alone"
    assert finding.sentence == said
    one = change(frames(), "ablation", {**where, "head": 1}, change=-1e-5)
    assert "without 1 of 24 heads, each" in only(find(content(), one)).sentence


def test_how_many_heads_were_tried_stands_apart_from_the_errors():
    where = {"layer": 3, "component": "head", "head": 2}
    fallen = change(frames(), "ablation", where, change=-0.04, error=0.001, texts=8)
    said = only(find(content(), fallen)).sentence
    assert said.endswith(" standard errors; 24 heads were tried")


def test_a_median_below_zero_is_no_threshold():
    parts = {"component": ["attention", "ffn"]}
    tables = change(frames(), "ablation", parts, change=-0.01)
    tables = change(tables, "ablation", {"layer": 1, "component": "ffn"}, change=0.9)
    assert find(content(), tables) == []


@pytest.mark.full
def test_a_rise_within_its_errors_is_no_part_to_keep():
    where = {"layer": 1, "component": "ffn"}
    known = {"change": 0.9, "texts": 8}
    for own in ({"error": 0.5}, {"error": np.nan}):
        assert find(content(), change(frames(), "ablation", where, **known, **own)) == []
    assert only(find(content(), change(frames(), "ablation", where, **known, error=0.1)))
