"""Tests of two models on the same questions, held against those of statsmodels and scipy."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from statsmodels.regression.linear_model import OLS
from statsmodels.stats.contingency_tables import mcnemar

from layerlab.evaluation.paired.question_statistics import (
    adjusted_difference,
    compare_questions,
    compare_tasks,
    sign_test,
)
from layerlab.experiments.statistics.differences import Level


def answers(both: int, gained: int, lost: int, neither: int) -> tuple[np.ndarray, np.ndarray]:
    ours = [1.0] * (both + gained) + [0.0] * (lost + neither)
    theirs = [1.0] * both + [0.0] * gained + [1.0] * lost + [0.0] * neither
    return np.array(ours), np.array(theirs)


@pytest.mark.parametrize(
    "counts", [(3, 8, 0, 7), (50, 27, 10, 133), (5, 4, 4, 0), (9000, 812, 517, 3713), (1, 1, 0, 1)]
)
def test_right_or_wrong_is_mcnemars_exact_test(counts):
    both, gained, lost, neither = counts
    found = compare_questions(*answers(*counts))
    expected = mcnemar([[both, gained], [lost, neither]], exact=True).pvalue
    assert found.p == pytest.approx(expected, rel=1e-9) and found.test == "exact McNemar test"
    assert (found.gained, found.lost, found.n) == (gained, lost, sum(counts))


def test_a_difference_that_an_unpaired_test_misses():
    """220 questions: p = 0.080 unpaired, 0.008 paired.

    The three numbers are those of pull request 3868 of EleutherAI/lm-evaluation-harness, which
    does not print its counts; these are chosen so that they give them.
    """
    ours, theirs = answers(50, 27, 10, 133)
    assert len(ours) == 220
    # As lm-eval's scripts/model_comparator.py does, from the standard errors of two scores.
    errors = [stats.sem(side) for side in (ours, theirs)]
    unpaired = 2 * stats.norm.sf((ours.mean() - theirs.mean()) / math.hypot(*errors))
    assert round(unpaired, 3) == 0.080
    found = compare_questions(ours, theirs)
    assert found.p is not None and round(found.p, 3) == 0.008


def test_no_question_that_flipped_is_no_evidence():
    found = compare_questions(*answers(5, 0, 0, 5))
    assert found.p == 1 and found.difference == 0 and found.found.interval is not None


def test_clusters_change_sides_together():
    """Against scipy's test of all 2^n signs."""
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 9, 60)
    ours, theirs = rng.integers(0, 2, (2, 60)).astype(float)
    found = compare_questions(ours, theirs, groups)
    sums = np.bincount(groups, weights=ours - theirs)
    every = stats.permutation_test(
        (sums, np.zeros(len(sums))),
        lambda a, b: np.sum(a - b),
        permutation_type="samples",
        n_resamples=10_000,
    )
    assert found.p == pytest.approx(every.pvalue) and found.units == 9 and found.n == 60


@pytest.mark.parametrize("sums", [[2, 2, -1, 0, 3], [5], [0, 0], [1, -1], [4, 4, 4, -3, -3, 1]])
def test_signs_are_counted_one_by_one(sums):
    reach = [
        abs(sum(sign * one for sign, one in zip(signs, sums, strict=True)))
        for signs in product((-1, 1), repeat=len(sums))
    ]
    expected = sum(one >= abs(sum(sums)) for one in reach) / len(reach)
    assert sign_test(sums) == pytest.approx(expected)


def test_a_tiny_p_is_told():
    assert sign_test([1] * 400) == pytest.approx(2.0**-399)


def test_scores_between_are_a_paired_t_test():
    rng = np.random.default_rng(1)
    ours, theirs = rng.random((2, 40))
    found = compare_questions(ours, theirs)
    expected = stats.ttest_rel(ours, theirs)
    assert found.p == pytest.approx(expected.pvalue)
    low, high = expected.confidence_interval()
    assert found.found.interval == pytest.approx((low, high))
    assert found.gained is None and found.test == "paired t-test"


def test_clusters_of_one_size_have_the_errors_of_statsmodels():
    rng = np.random.default_rng(2)
    groups = np.repeat(np.arange(12), 7)
    ours = rng.random(84) + 0.3 * rng.random(12)[groups]
    theirs = rng.random(84)
    found = compare_questions(ours, theirs, groups)
    fit = OLS(ours - theirs, np.ones(84)).fit(
        cov_type="cluster", cov_kwds={"groups": groups}, use_t=True
    )
    assert found.difference == pytest.approx(fit.params[0])
    assert found.found.error == pytest.approx(fit.bse[0])
    assert found.found.freedom == pytest.approx(11)


@pytest.mark.parametrize("sizes", [[1, 2, 3, 4, 5], [40, 1, 1, 2, 3, 1], [3, 9]])
def test_clusters_of_any_size_have_the_errors_of_the_whole_matrices(sizes):
    """As the source has them for any regression: (I - H)^-1/2 of each cluster, and its traces."""
    rng = np.random.default_rng(3)
    groups = np.repeat(np.arange(len(sizes)), sizes)
    ours, theirs = rng.random((2, len(groups)))
    found = compare_questions(ours, theirs, groups).found
    n, gaps = len(groups), ours - theirs
    left = np.eye(n) - 1 / n  # what a mean leaves
    square, columns = 0.0, []
    for one in range(len(sizes)):
        own = np.flatnonzero(groups == one)
        values, vectors = np.linalg.eigh(left[np.ix_(own, own)])
        root = vectors / np.sqrt(values) @ vectors.T
        square += (np.ones(len(own)) / n @ root @ (left @ gaps)[own]) ** 2
        columns.append(left[:, own] @ root @ (np.ones(len(own)) / n))
    products = np.array(columns) @ np.array(columns).T
    assert found.error == pytest.approx(math.sqrt(square))
    assert found.freedom == pytest.approx(np.trace(products) ** 2 / (products**2).sum())


def test_copies_of_questions_tell_no_more():
    """Ten copies of each, as clusters: the same p, and by themselves a far smaller one."""
    ours, theirs = answers(10, 9, 3, 10)
    copies = np.repeat(np.arange(len(ours)), 10)
    one, ten = (np.repeat(side, 10) for side in (ours, theirs))
    alone = compare_questions(ours, theirs)
    assert compare_questions(one, ten, copies).p == pytest.approx(alone.p)
    found = compare_questions(one, ten)
    assert found.p is not None and alone.p is not None and found.p < alone.p / 100


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 30), st.sampled_from([0.8, 0.95]))
def test_an_interval_of_shares_is_that_of_a_question_more_on_either_side(gained, lost, rest, sure):
    n, level = gained + lost + rest, Level(confidence=sure)
    gaps = np.array([1.0] * (gained + 1) + [-1.0] * (lost + 1) + [0.0] * rest)
    found = adjusted_difference(gained, lost, n, level)
    assert found.mean == pytest.approx(gaps.mean())
    if n < 2:
        assert found.interval is None
        return
    error = gaps.std() / math.sqrt(n + 2)
    expected = stats.t.interval(sure, n - 1, gaps.mean(), error)
    assert found.interval == pytest.approx(expected)
    assert compare_questions(*answers(0, gained, lost, rest), None, level).found == found


def test_scores_between_have_a_t_test_whichever_side_they_are_on():
    whole, parts = np.array([1.0, 0.0, 1.0, 0.0]), np.array([0.5, 0.25, 1.0, 0.0])
    level = Level(confidence=0.8)
    for ours, theirs in ((whole, parts), (parts, whole)):
        found = compare_questions(ours, theirs, level=level)
        expected = stats.ttest_rel(ours, theirs)
        assert found.test == "paired t-test" and found.p == pytest.approx(expected.pvalue)
        interval = expected.confidence_interval(0.8)
        assert found.found.interval == pytest.approx((interval.low, interval.high))


def test_one_unit_tells_nothing_and_two_do():
    halves = np.array([0.25, 0.75])
    for ours in (halves, halves[::-1]):  # the same score at each question, and in the mean
        assert compare_questions(ours, halves, np.zeros(2, dtype=int)).p is None
    assert compare_questions(halves[:1], halves[:1]).p is None
    assert compare_questions(np.array([1.0]), np.array([0.0])).p is None
    assert compare_questions(*answers(1, 1, 0, 0)).p == 1


def test_tasks_stand_for_others():
    ours, theirs = [0.5, 0.6, 0.7, 0.4], [0.4, 0.55, 0.71, 0.3]
    found = compare_tasks(ours, theirs, 100)
    assert found.p == pytest.approx(stats.ttest_rel(ours, theirs).pvalue)
    assert (found.units, found.n) == (4, 100)


@pytest.mark.full
@pytest.mark.parametrize(("gained", "lost"), [(0.1, 0.1), (0.02, 0.02), (0.2, 0.05)])
def test_intervals_hold_the_truth(gained, lost):
    """At least 93.5 % of 95 % intervals over 100 questions, of 4,000: 4 errors below nominal."""
    rng = np.random.default_rng(3)
    table = rng.multinomial(100, [gained, lost, 1 - gained - lost], 4000)
    held = 0
    for more, less, _ in table.tolist():
        low, high = adjusted_difference(more, less, 100, Level()).interval or (1, -1)
        held += low <= gained - lost <= high
    assert held / 4000 > 0.95 - 4 * math.sqrt(0.05 * 0.95 / 4000)


@pytest.mark.full
def test_models_that_are_alike_are_rarely_told_apart():
    """Clusters of five with answers that hang together: 5 % by clusters, far more without."""
    rng = np.random.default_rng(4)
    groups = np.repeat(np.arange(40), 5)
    false = {True: 0, False: 0}
    for _ in range(1000):
        ours, theirs = (
            (rng.random(200) < np.repeat(rng.beta(0.3, 0.3, 40), 5)).astype(float) for _ in range(2)
        )
        for clustered in false:
            p = compare_questions(ours, theirs, groups if clustered else None).p
            false[clustered] += p is not None and p < 0.05
    assert false[True] / 1000 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 1000) < false[False] / 1000


@pytest.mark.full
@pytest.mark.parametrize(
    ("n", "flips"),
    [(50, 0.2), (300, 0.1), (1000, 0.2), (20, 0.0), (50, 0.04), (1000, 0.002), (9000, 0.0006)],
)
@pytest.mark.parametrize("comparisons", [1, 60])
def test_what_can_be_detected_is_found_as_often_as_is_said(n, flips, comparisons):
    """The larger end, which is told, is found by the exact test in 80 % of 2,000 at least."""
    level = Level(comparisons=comparisons)
    half = round(n * flips / 2)
    told = compare_questions(*answers(n - 2 * half, half, half, 0), level=level)
    _, most = told.detectable or (0.0, 0.0)
    # More answers differ than did, where fewer could not make so large a difference.
    gained = max((flips + most) / 2, most)
    rng = np.random.default_rng(5)
    table = rng.multinomial(n, [gained, gained - most, 1 - 2 * gained + most], 2000).tolist()
    found = [
        more + less > 0 and stats.binomtest(more, more + less).pvalue < level.strictest
        for more, less, _ in table
    ]
    assert np.mean(found) > level.power - 3 * math.sqrt(0.8 * 0.2 / 2000)


def test_so_few_clusters_that_no_exact_test_finds_anything_detect_nothing():
    ours, theirs = (np.arange(60) % 7 == 0).astype(float), np.zeros(60)
    few, enough = (
        compare_questions(ours, theirs, np.arange(60) // size).detectable for size in (12, 10)
    )
    assert few == (2.0, 2.0) and max(enough) <= 1
