"""Means, their errors, and differences over the same questions."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from layerlab.evaluation.metrics.estimates import (
    Mean,
    combine_means,
    mark_accuracy,
    match_scores,
    mean,
    paired_mean,
    wilson,
)

SCORES = st.lists(st.floats(0, 1), min_size=2, max_size=30)


@given(SCORES)
def test_error_is_that_of_a_sample_mean(scores):
    found = mean(scores)
    centre = sum(scores) / len(scores)
    variance = sum((one - centre) ** 2 for one in scores) / (len(scores) - 1)
    assert found.value == pytest.approx(centre) and found.n == len(scores)
    assert found.error == pytest.approx(math.sqrt(variance / len(scores)), abs=1e-12)


@given(SCORES)
def test_no_difference_to_itself(scores):
    assert paired_mean(scores, scores) == Mean(0.0, 0.0, len(scores))


@given(SCORES, st.floats(-1, 1))
def test_a_constant_shift_has_no_error(scores, shift):
    found = paired_mean([one + shift for one in scores], scores)
    assert found.value == pytest.approx(shift, abs=1e-9) and found.error < 1e-9


def test_pairing_takes_away_what_makes_a_question_hard():
    draw = random.Random(0)
    hard = [draw.random() for _ in range(200)]
    ours, theirs = [one + 0.01 * draw.random() for one in hard], hard
    alone = math.hypot(mean(ours).error or 0, mean(theirs).error or 0)
    assert (paired_mean(ours, theirs).error or 1) < alone / 20


def test_runs_over_other_questions_are_not_paired():
    with pytest.raises(ValueError, match="shorter"):
        paired_mean([1.0, 0.0], [1.0])
    assert match_scores({"a": 1.0, "b": 0.5}, {"b": 0.25, "c": 1.0}) == ([0.5], [0.25])


@given(st.lists(st.integers(2, 9), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_weighted_by_size_is_the_mean_of_all(sizes, draw):
    groups = [[draw.random() for _ in range(size)] for size in sizes]
    found = combine_means([mean(group) for group in groups], sizes)
    assert found.value == pytest.approx(mean([one for group in groups for one in group]).value)
    assert found.n == sum(sizes)


def test_the_error_of_an_average_is_seen_in_repetitions():
    """Monte Carlo: the propagated error is the spread of the average."""
    draw = random.Random(1)
    values, errors = [], []
    for _ in range(400):
        parts = [mean([draw.gauss(0, 1) for _ in range(20)]) for _ in range(5)]
        found = combine_means(parts, [1, 2, 3, 4, 5])
        values.append(found.value)
        errors.append(found.error or 0)
    spread = math.sqrt(sum(value**2 for value in values) / len(values))
    # The spread of 400 draws is known to 1 / sqrt(800) = 3.5 %; four times that.
    assert sum(errors) / len(errors) == pytest.approx(spread, rel=0.15)


@given(st.integers(1, 60), st.integers(0, 60))
def test_the_interval_of_a_share_is_scipys_of_wilson(n, right):
    right = min(right, n)
    theirs = binomtest(right, n).proportion_ci(0.95, method="wilson")
    found = mark_accuracy([1.0] * right + [0.0] * (n - right))
    assert found.ends == pytest.approx((theirs.low, theirs.high), abs=1e-6)
    assert 0 <= found.ends[0] <= found.value <= found.ends[1] <= 1
    assert found.ends[0] < found.ends[1]


def test_shares_that_are_all_alike_have_an_interval_and_show_no_error():
    none, all_right = mark_accuracy([0.0, 0.0]), mark_accuracy([1.0, 1.0])
    assert none.error == 0.0 and none.summary() == "0.00" and all_right.summary() == "100.00"
    assert none.ends == pytest.approx((0.0, 0.6576), abs=1e-4)
    assert all_right.ends == pytest.approx((0.3424, 1.0), abs=1e-4)
    assert mark_accuracy([1.0]).ends == pytest.approx((0.2065, 1.0), abs=1e-4)
    assert wilson(-0.1, 5) is None and wilson(0.5, 0) is None


def test_other_scores_have_the_normal_interval():
    found = mark_accuracy([0.2, 0.3, 0.4])
    assert found.ends == pytest.approx((0.3 - 1.96 * found.error, 0.3 + 1.96 * found.error), 1e-4)
    low, high = mark_accuracy([0.3, 0.3]).ends or (1, 0)
    assert low < 0.3 < high


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=9), min_size=1, max_size=6))
def test_the_interval_of_an_average_holds_it_and_is_never_empty(answers):
    parts = [mark_accuracy([float(one) for one in its]) for its in answers]
    found = combine_means(parts, [part.n for part in parts])
    assert found.ends is not None and found.ends[0] <= found.value <= found.ends[1]
    assert -1e-12 <= found.ends[0] < found.ends[1] <= 1 + 1e-12
    if len(parts) == 1:
        assert found.ends == pytest.approx(parts[0].ends)


def test_the_interval_of_an_average_covers_its_share():
    """Monte Carlo: near zero, where the normal one is often empty."""
    draw, held, empty = random.Random(2), 0, 0
    for _ in range(400):
        parts = [mark_accuracy([float(draw.random() < 0.04) for _ in range(10)]) for _ in range(4)]
        found = combine_means(parts)
        assert 0 < (found.size or 0) <= 40 + 1e-9
        low, high = found.ends or (1, 0)
        held += low <= 0.04 <= high
        empty += not found.error
    # The normal interval is empty, so wrong, in each of the empty ones.
    assert held >= 0.95 * 400 - 4 * math.sqrt(400 * 0.05 * 0.95) and empty > 40


def test_an_average_of_shares_and_other_scores_is_no_share():
    share, other = mark_accuracy([1.0, 0.0, 1.0]), mark_accuracy([0.2, 0.3])
    assert combine_means([share, other]).size is None
    assert combine_means([share, other], [1, 0]).size == pytest.approx(share.size)


def test_what_has_no_error_gives_none():
    assert mean([1.0]).error is None
    assert combine_means([mean([1.0]), mean([1.0, 0.0])]).error is None
    assert math.isnan(combine_means([]).value) and math.isnan(mean([]).value)
