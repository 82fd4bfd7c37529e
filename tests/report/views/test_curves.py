"""Curves are thinned on shared updates, and no value is invented."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerlab.report.views.curves import (
    BUDGET,
    LEAST,
    MOST,
    bins,
    curve_columns,
    paired_columns,
    shares,
    short,
)


def curve(updates, loss, **columns):
    flat = {"update": list(updates), "loss": list(loss), **columns}
    return {"train": {"tokens": [2 * n for n in flat["update"]], **flat}}


@given(st.sets(st.integers(0, 10_000), min_size=1, max_size=300), st.integers(1, 50))
def test_bins_are_few_in_order_and_keep_the_last_update(updates, most):
    ordered = np.array(sorted(updates))
    ends = bins(ordered, most)
    assert len(set(ends)) <= max(most, 1)
    assert ends[-1] == ordered[-1]
    assert (ends >= ordered).all() and (np.diff(ends) >= 0).all()


def test_a_short_curve_is_kept_point_by_point():
    found = curve_columns([curve([1, 2, 3], [3.0, 2.0, 1.5])], "train", ["loss"])
    assert not found["thinned"]
    assert found["runs"]["0"]["loss"] == [3, 2, 1.5]
    assert found["runs"]["0"]["tokens"] == 2
    assert found["runs"]["0"]["seconds"] is None


def test_a_long_curve_becomes_means_on_updates_that_seeds_share():
    long = range(1, 4 * MOST + 1)
    found = curve_columns(
        [curve(long, map(float, long)), curve(long, [1.0] * len(long))], "train", ["loss"]
    )
    one, other = found["runs"]["0"], found["runs"]["1"]
    assert found["thinned"]
    assert len(one["update"]) == MOST
    assert one["update"] == other["update"]
    assert one["update"][-1] == long[-1]
    assert one["loss"][0] == 2.5
    assert set(other["loss"]) == {1}


@pytest.mark.full
def test_many_runs_share_the_budget_and_none_falls_below_the_least():
    runs = [curve(range(1, 501), [1.0] * 500) for _ in range(200)]
    found = curve_columns(runs, "train", ["loss"])["runs"]
    points = [len(one["update"]) for one in found.values()]
    assert min(points) >= LEAST
    assert sum(points) <= BUDGET


def test_gaps_and_damage_stay_gaps():
    rough = curve([1, 2, 2, 3], [1.0, math.nan, math.inf, None], seconds=[1.0])
    found = curve_columns([rough, {}, {"train": "x"}], "train", ["loss"])["runs"]
    assert list(found) == ["0"]
    assert found["0"]["update"] == [1, 2, 3]
    assert found["0"]["loss"] == [1, None, None]
    assert found["0"]["seconds"] is None
    assert curve_columns([], "train", ["loss"]) == {"thinned": False, "runs": {}}


def test_places_that_are_no_multiple_of_the_updates_are_sent_as_they_are():
    found = curve_columns(
        [curve([0, 10, 20], [3.0, 2.0, 1.0], seconds=[0.0, 1.0, 2.5])], "train", ["loss"]
    )
    assert found["runs"]["0"]["seconds"] == [0, 1, 2.5]
    assert found["runs"]["0"]["tokens"] == 2


def test_the_interval_is_that_of_student():
    assert shares(0.95, [1, 2, 3, 3]) == {"2": 12.7062, "3": 4.30265}


@pytest.mark.parametrize("value", [None, True, "1", math.nan, -math.inf])
def test_what_is_no_number_is_none(value):
    assert short(value) is None


def test_a_band_begins_without_width_where_all_seeds_begin_alike_and_one_seed_has_none():
    begun = {"tokens": 0, "n": 3, "difference": 0.0, "low": None, "high": None}
    ended = {"tokens": 9, "n": 3, "difference": -0.5, "low": -1.5, "high": 0.5}
    arm = {"arm": "b", "against": "a", "points": [begun, ended]}
    alone = {**arm, "points": [{**begun, "n": 1}]}
    several, one = paired_columns([arm, alone], ["a", "b"])
    assert several["low"] == [0, -1.5] and several["high"] == [0, 0.5]
    assert one["low"] == one["high"] == [None]
