"""Turns of weighted sources: exact over time, and any of them can be asked for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerlab.corpus.mixture import LONGEST, Mixture, parts_of
from tests.support.refused import refuses

WEIGHTS = st.lists(st.integers(1, 60).map(float), min_size=1, max_size=7)


@given(WEIGHTS)
@settings(max_examples=60, deadline=None)
def test_no_prefix_strays_by_more_than_tijdeman_proves(weights):
    count = int(2 * sum(weights)) + 3
    sources, turns = Mixture(weights).turn(np.arange(count))
    had = np.cumsum(sources[:, None] == np.arange(len(weights)), axis=0)
    due = np.outer(np.arange(1, count + 1), weights) / sum(weights)
    bound = 1 - 1 / max(1, 2 * len(weights) - 2)
    assert np.abs(had - due).max() <= bound + 1e-9
    # Each source's own turns are counted without a gap.
    assert np.array_equal(turns, had[np.arange(count), sources] - 1)


@given(WEIGHTS, st.integers(0, 10**9), st.integers(1, 50))
@settings(max_examples=40, deadline=None)
def test_a_place_is_the_same_alone_and_among_others(weights, first, count):
    mixture = Mixture(weights)
    places = np.arange(first, first + count)
    together = np.stack(mixture.turn(places))
    single = [mixture.turn(place) for place in np.split(places, count)]
    assert np.array_equal(together, np.hstack(single))


@pytest.mark.parametrize(
    ("weights", "parts"),
    [([1.0], [1]), ([0.1, 0.2], [1, 2]), ([2.0, 2.0], [1, 1]), ([1.0, 0.25, 0.75], [4, 1, 3])],
)
def test_weights_are_taken_as_they_are_written(weights, parts):
    assert parts_of(weights) == parts


def test_weights_of_many_digits_are_rounded_and_none_is_lost():
    parts = parts_of([1 / 3, 2 / 3, 1.1 / LONGEST])
    assert sum(parts) <= LONGEST + 1 and min(parts) == 1
    assert parts[1] / parts[0] == pytest.approx(2, rel=1e-3)


def test_a_weight_that_is_less_than_a_turn_is_refused():
    """Its source would be drawn more often than was asked for: 1e-9 as 1.5e-5."""
    told = r"the weight 1e-09 is less than 1 / 65,536 of .*; expected at least 1.5e-05: write"
    refuses(told, parts_of, [1 / 3, 2 / 3, 1e-9])
