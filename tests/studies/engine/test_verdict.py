"""The rule by which numbers become words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerlab.studies.engine.statistics import Interval
from layerlab.studies.engine.verdict import above, apart, below, combine, decide, each, within

ENDS = st.tuples(*[st.floats(-10, 10)] * 3).map(sorted)


@pytest.mark.parametrize(
    ("low", "high", "own", "claimed"),
    [
        (1.1, 1.2, "holds", "holds"),
        (1.01, 1.04, "smaller than asked", "fails"),
        (0.9, 0.99, "fails", "fails"),
        (1.0, 1.0, "fails", "fails"),
        (0.97, 1.04, "not decided", "fails"),
        (1.01, 1.2, "not decided", "not decided"),
        (0.9, 1.2, "not decided", "not decided"),
    ],
)
def test_a_size_of_our_own_is_no_part_of_the_claim(low, high, own, claimed):
    found = Interval((low + high) / 2, low, high)
    assert above(found, 1.05, 1.0) == own
    assert above(found, 1.05) == claimed


@given(ENDS, st.floats(-10, 10), st.floats(0, 5))
def test_less_is_more_with_the_signs_turned(ends, neutral, size):
    low, value, high = ends
    found, turned = Interval(value, low, high), Interval(-value, -high, -low)
    assert below(turned, -neutral - size, -neutral) == above(found, neutral + size, neutral)
    assert below(turned, -neutral) == above(found, neutral)


@given(ENDS, st.floats(-10, 10), st.floats(0.001, 5))
def test_a_word_is_never_the_opposite_of_what_the_ends_say(ends, neutral, size):
    low, value, high = ends
    word = above(Interval(value, low, high), neutral + size, neutral)
    assert (word == "holds") == (low > neutral + size)
    assert (word == "fails") == (high <= neutral)
    assert (word == "smaller than asked") == (low > neutral and high < neutral + size)
    # Without a size of ours direction alone is left.
    assert above(Interval(value, low, high), neutral, neutral) != "smaller than asked"


def test_what_is_just_what_was_asked_for_is_not_more_than_it():
    exact = Interval(1.0, 1.0, 1.0)
    assert (above(exact, 1.0), below(exact, 1.0)) == ("fails", "fails")
    assert above(Interval(2.0, 1.0, 3.0), 1.0) == "not decided"


def test_between_two_ends():
    words = [within(Interval(0, *ends), -1, 1) for ends in ((-0.5, 0.5), (2, 3), (0.5, 2))]
    assert words == ["holds", "fails", "not decided"]


def test_two_numbers_with_intervals_are_apart_or_not():
    ends = ((2, 3), (-1, 0), (0.5, 2))
    words = [apart(Interval(1, *one), Interval(0.5, 0.1, 1)) for one in ends]
    assert words == ["holds", "fails", "not decided"]


@pytest.mark.parametrize(
    ("settled", "word"),
    [
        ({"holds": True}, "holds"),
        ({"holds": False}, "fails"),
        ({"fails": True}, "fails"),
        ({"fails": False}, "holds"),
        ({"holds": True, "fails": False}, "holds"),
        ({"holds": False, "fails": False}, "not decided"),
        ({"holds": True, "fails": True}, "fails"),
    ],
)
def test_what_has_no_interval_is_settled_by_a_fact(settled, word):
    assert decide(**settled) == word


@pytest.mark.parametrize(
    ("words", "all_of_them", "repeats"),
    [
        (["holds", "holds"], "holds", "holds"),
        (["holds", "fails", "not decided"], "fails", "not decided"),
        (["holds", "smaller than asked"], "smaller than asked", "not decided"),
        (["not decided", "smaller than asked"], "not decided", "not decided"),
        (["fails", "fails"], "fails", "fails"),
    ],
)
def test_several_numbers_of_one_claim(words, all_of_them, repeats):
    assert (each(words), combine(words)) == (all_of_them, repeats)
