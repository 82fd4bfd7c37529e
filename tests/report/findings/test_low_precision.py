"""Findings on checkpoints that differ: which part is named, and what is said of it."""

import math

import pandas as pd
import pytest

from layerlab.report.findings.low_precision import RULES
from layerlab.report.findings.rule import RuleData
from tests.report.findings.test_find import change, find, names
from tests.report.support.reading import card, content
from tests.report.support.reading import frames as healthy

COLUMNS = ("by", "part", "kl", "share", "saved", "flips", "change", "weights")


def swapped(rows):
    """What is found of rows of a swap."""
    frames = {"swap": pd.DataFrame(rows, columns=list(COLUMNS))}
    rule = next(one for one in RULES if one.name == "swapped")
    (found,) = rule.judge(RuleData(card={}, frames=frames, measures={}))
    assert "the weights of layer 0, 50 % of those" in found.sentence
    return found


@pytest.mark.parametrize(
    ("saved", "told"),
    [(0.25, "saves 25 %"), (-0.1, "saves nothing alone"), (0.0, "saves nothing alone")],
)
def test_a_part_that_saves_nothing_alone_is_told_so(saved, told):
    rows = [
        ("all", "all weights", 0.1, 1.0, 1.0, 0.0, 0.1, 100),
        ("layer", "layer 0", 0.08, 0.8, saved, 0.0, 0.1, 50),
        ("layer", "layer 1", 0.01, 0.05, 0.3, 0.0, 0.1, 1),
    ]
    assert told in swapped(rows).advice


@pytest.mark.parametrize(("flips", "severity"), [(0.05, "info"), (0.051, "warning")])
def test_a_checkpoint_of_which_one_token_in_twenty_is_another_is_a_warning(flips, severity):
    rows = [
        ("all", "all weights", 0.1, 1.0, 1.0, flips, 0.1, 100),
        ("layer", "layer 0", 0.08, 0.8, 0.25, 0.0, 0.1, 50),
        ("layer", "layer 1", 0.08, math.inf, 0.25, 0.0, 0.1, 50),
    ]
    found = swapped(rows)
    assert (found.severity, found.value, found.threshold) == (severity, flips, 0.05)


def test_an_activation_beside_a_median_of_0_is_no_multiple_of_it():
    tables = change(healthy(), "stream", {"layer": 3}, massive=1, largest=900.0, median=0.0)
    (found,) = [one for one in find(content(), tables) if one.id.startswith("massive")]
    assert found.sentence.startswith("Layer 3: massive activation 900")
    assert "beside a median of 0" in found.sentence and "times" not in found.sentence
    tables = change(healthy(), "stream", {"layer": 3}, massive=1, largest=900.0, median=3.0)
    (found,) = [one for one in find(content(), tables) if one.id.startswith("massive")]
    assert "300 times the median 3" in found.sentence and "(token " in found.sentence


@pytest.mark.parametrize(("largest", "severity"), [(5e4, "warning"), (math.inf, "error")])
def test_a_stream_that_is_infinite_is_an_error_in_any_format(largest, severity):
    tables = change(healthy(), "stream", {"layer": 3}, largest=largest)
    (found,) = find(content(card(dtype="bfloat16")), tables)
    assert (found.severity, found.value) == (severity, largest)


@pytest.mark.parametrize("place", ["largest_token", "largest_channel"])
def test_an_activation_whose_place_is_not_known_is_told_without(place):
    tables = change(healthy(), "stream", {"layer": 3}, massive=1, largest=900.0)
    tables = change(tables, "stream", {"layer": 3}, **{place: math.nan})
    (found,) = [one for one in find(content(), tables) if one.id.startswith("massive")]
    assert "(token " not in found.sentence


def test_a_model_without_a_width_of_heads_has_none_that_cancel():
    tables = change(healthy(), "querykey", {"layer": 3, "head": 2}, abs_norm=90.0, norm=1.0)
    assert "cancelling" in names(find(content(), tables))
    assert "cancelling" not in names(find(content(card(head_width=None)), tables))
    tables = change(tables, "querykey", {}, norm=0.0)
    assert "cancelling" not in names(find(content(), tables))
