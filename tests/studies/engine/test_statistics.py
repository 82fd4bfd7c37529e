"""Slopes, intervals and histograms of draws."""

import numpy as np
import pytest
from scipy import stats

from layerlab.studies.engine.statistics import (
    MANY,
    ROUNDS,
    Interval,
    bins,
    bootstrap,
    bootstrap_each,
    line,
    maximum,
    mean_of_groups,
    ratio_of_medians,
    summary,
)
from layerlab.studies.engine.verdict import above, below


def test_a_line_is_found_and_says_what_it_explains():
    x = np.arange(10.0)
    found = line(x, 3 * x - 1)
    assert (found.slope, found.start, found.explained) == pytest.approx((3, -1, 1))
    noise = np.random.default_rng(0).standard_normal(2000)
    assert abs(line(np.arange(2000.0), noise).explained) < 0.01
    assert line([0, 1, 2, 3], [0, 1, np.inf, 3]).slope == pytest.approx(1)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    draws = np.random.default_rng(0)
    inside = 0
    for trial in range(200):
        found = bootstrap(draws.standard_normal(50), lambda x: float(x.mean()), trial, rounds=200)
        inside += found.low <= 0 <= found.high
    # Binomial around 0.93 (the percentile bootstrap of 50 draws), four standard errors.
    assert abs(inside / 200 - 0.93) < 4 * (0.93 * 0.07 / 200) ** 0.5


@pytest.mark.parametrize(
    ("number", "count"),
    [
        (np.mean, 6),
        *(pytest.param(np.mean, count, marks=pytest.mark.full) for count in (8, 12, 20)),
        *(pytest.param(np.median, count, marks=pytest.mark.full) for count in (6, 8, 12, 20)),
    ],
)
def test_few_draws_cover_the_truth_nearly_as_often_as_many(number, count):
    """Percentiles as they are cover the mean of 6 normal draws in 85 of 100 cases, of 20 in 92."""
    draws = np.random.default_rng(count)
    found = [bootstrap(draws.standard_normal(count), number, one) for one in range(400)]
    inside = np.mean([one.low <= 0 <= one.high for one in found])
    assert 0.905 < inside < 0.995


def test_many_draws_have_the_percentiles_as_they_are():
    for count, wider in ((MANY, False), (MANY - 1, True)):
        values = np.random.default_rng(0).standard_normal(count)
        drawn = np.random.default_rng(0).integers(0, count, (ROUNDS, count))
        low, high = np.percentile(values[drawn].mean(1), [2.5, 97.5])
        found = bootstrap(values, np.mean)
        assert (found.low < low and found.high > high) == wider
        assert ((found.low, found.high) == (low, high)) != wider


@pytest.mark.full
@pytest.mark.parametrize("number", [np.mean, np.median])
def test_rounds_that_are_computed_together_are_those_one_after_the_other(number):
    """To the bit, however the draws lie in memory."""
    draws = np.random.default_rng(1).standard_normal((7, 33, 3))
    whole = np.random.default_rng(2).standard_normal(700)
    transposed = np.asfortranarray(draws), draws.transpose(0, 2, 1)
    for values in (draws, draws[:, 1, 2], draws[..., 0], *transposed, draws < 1, whole):
        together = bootstrap(values, number, 5, comparisons=2)
        assert together == bootstrap(values, lambda one: number(one), 5, comparisons=2)


def test_ratios_of_medians_of_rounds_together_are_those_of_each():
    draws = np.exp(np.random.default_rng(3).standard_normal((33, 5, 2)))
    for values in (draws[:, 1], draws[..., ::-1][:, 2], draws, draws.swapaxes(0, 1)):
        together = bootstrap(values, ratio_of_medians, 5, comparisons=2)
        assert together == bootstrap(values, lambda one: _ratio(one.reshape(-1, 2)), 5, 400, 2)


def _ratio(pair):
    first, second = np.median(pair, axis=0)
    return float(first / second)


def test_intervals_that_are_right_together_are_wider():
    values = np.random.default_rng(0).standard_normal(200)
    alone, ten = (bootstrap(values, np.mean, comparisons=count) for count in (1, 10))
    error = values.std() / 200**0.5
    # Ends of a normal distribution at 2.5 % and at a tenth of that.
    assert alone.high - alone.low == pytest.approx(2 * 1.96 * error, rel=0.15)
    assert ten.high - ten.low == pytest.approx(2 * 2.81 * error, rel=0.15)


@pytest.mark.parametrize(("comparisons", "least"), [(1, 6), (20, 10)])
def test_draws_that_are_too_few_for_the_level_decide_nothing(comparisons, least):
    """Of n draws all lie on one side of their median once in 2^(n - 1) times."""
    values = np.linspace(2.0, 3.0, least)
    enough = bootstrap(values, np.median, comparisons=comparisons)
    assert above(enough, 1.0) == "holds" and below(enough, 1.0) == "fails"
    few = bootstrap(values[1:], np.median, comparisons=comparisons)
    assert few.value == np.median(values[1:]) and (few.low, few.high) == (-np.inf, np.inf)
    assert above(few, 1.0) == below(few, 1.0) == "not decided"


def test_groups_cover_the_largest_of_as_many_draws():
    draws = np.random.default_rng(0)
    # Of ten numbers between 0 and 1 the largest is 10 / 11 on average.
    found = [mean_of_groups(draws.uniform(size=100), np.max, 10) for _ in range(300)]
    inside = np.mean([one.low <= 10 / 11 <= one.high for one in found])
    assert abs(inside - 0.95) < 0.06


def test_groups_have_the_interval_of_student():
    values = np.random.default_rng(0).normal(size=40)
    found = mean_of_groups(values, np.mean, 8)
    means = values.reshape(8, 5).mean(1)
    ends = stats.t.interval(0.95, 7, means.mean(), stats.sem(means))
    assert (found.low, found.high) == pytest.approx(ends)


def test_intervals_that_hold_together_take_as_many_times_the_rounds():
    rounds = []

    def number(values):
        rounds.append(len(values))
        return values.mean()

    bootstrap(np.arange(float(MANY)), number, comparisons=3)
    # The first is that of the draws themselves.
    assert rounds == [MANY] * (1 + 3 * ROUNDS)


def test_several_numbers_that_judge_one_claim_hold_together_unless_said_otherwise():
    draws = dict(enumerate(np.random.default_rng(0).normal(size=(3, MANY))))
    found = bootstrap_each(draws, np.mean, 7)
    assert found == {n: bootstrap(one, np.mean, 7, comparisons=3) for n, one in draws.items()}
    alone = bootstrap_each(draws, np.mean, 7, comparisons=1)
    assert alone == {n: bootstrap(one, np.mean, 7) for n, one in draws.items()}


def test_a_largest_value_is_told_without_an_interval():
    assert str(maximum(np.array([[0.5, np.nan], [0.784, 0.1]]))) == "0.784"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Interval(1.234, 1.1, 1.5), "1.23 (1.1 to 1.5)"),
        (Interval(0, 0, 0), "0"),
        (Interval(1.641, 1.64, 1.642), "1.64"),
        (Interval(1.641, 1.64, 1.65), "1.64 (1.64 to 1.65)"),
    ],
)
def test_an_interval_without_a_width_is_one_number(found, said):
    assert str(found) == said


def test_infinite_draws_count_for_quantiles_and_not_for_the_mean():
    row = summary(np.array([1.0, 2.0, 3.0, np.inf, np.inf]), {"layer": 1})
    assert (row["layer"], row["mean"], row["median"], row["infinite"]) == (1, 2.0, 3.0, 2)
    assert row["p95"] == np.inf and row["largest"] == 3.0


def test_what_was_not_read_is_not_called_infinite():
    row = summary(np.array([1.0, np.nan, 3.0, np.inf]), {})
    assert (row["mean"], row["median"], row["infinite"], row["draws"]) == (2.0, 3.0, 1, 3)
    assert row == summary(np.array([1.0, 3.0, np.inf]), {})
    none = summary(np.full(3, np.nan), {})
    assert np.isnan(none["median"]) and none["infinite"] == none["draws"] == 0


def test_a_histogram_counts_every_positive_draw():
    values = 10.0 ** np.random.default_rng(0).uniform(-6, 0, 1000)
    middles, counts = bins(values)
    assert sum(counts) == 1000 and min(values) < middles[0] < middles[-1] < max(values)
    assert bins(np.zeros(3)) == ([], [])


def test_a_number_that_is_none_decides_nothing():
    found = bootstrap(np.array([3.0, np.nan, 2.0, 2.5]), np.mean)
    assert np.isnan([found.value, found.low, found.high]).all()
    assert above(found, 1.0) == below(found, 9.0) == "not decided"
