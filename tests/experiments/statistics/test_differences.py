"""Statistics against scipy, against literal transcriptions, and against simulation."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from layerlab.experiments.statistics import differences as statistics
from layerlab.experiments.statistics.differences import (
    Difference,
    Level,
    difference_to,
    paired_difference,
    power,
    required_seeds,
    welch,
)

LOSSES = st.lists(st.floats(0.5, 12), min_size=3, max_size=8)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0.5, 12), st.floats(0.5, 12)), min_size=3, max_size=8))
def test_pairs_are_judged_as_scipy_judges_them(pairs):
    arm, base = (list(side) for side in zip(*pairs, strict=True))
    found = paired_difference(arm, base)
    differences = np.subtract(arm, base)
    if found.flat or differences.std() < 1e-9:
        return
    oracle = stats.ttest_rel(arm, base)
    low, high = oracle.confidence_interval(0.95)
    assert found.p == pytest.approx(oracle.pvalue, rel=1e-6, abs=1e-12)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-6, abs=1e-9)
    assert found.mean == pytest.approx(differences.mean(), abs=1e-12)
    assert found.sd == pytest.approx(differences.std(ddof=1), rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(LOSSES, LOSSES)
def test_without_shared_seeds_it_is_welch(arm, base):
    if min(np.var(arm), np.var(base)) < 1e-9:  # scipy warns, and is an error here
        return
    found = welch(arm, base)
    oracle = stats.ttest_ind(arm, base, equal_var=False)
    low, high = oracle.confidence_interval(0.95)
    assert found.kind == "welch"
    assert found.p == pytest.approx(oracle.pvalue, rel=1e-6, abs=1e-12)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-6, abs=1e-9)


def test_seeds_pair_wherever_one_is_shared():
    arm, base = {1: 3.0, 2: 3.2, 3: 3.1}, {1: 3.1, 2: 3.5, 4: 9.0}
    assert difference_to(arm, base) == paired_difference([3.0, 3.2], [3.1, 3.5])
    assert difference_to(arm, {7: 3.1, 8: 3.3}) == welch([3.0, 3.2, 3.1], [3.1, 3.3])
    assert (
        difference_to(arm, {})
        == difference_to({}, base)
        == statistics.Difference(kind="paired", n=0)
    )


def test_one_pair_has_a_difference_and_nothing_else():
    found = paired_difference([3.0], [3.5])
    assert (found.n, found.mean) == (1, -0.5)
    assert found.sd is found.low is found.high is found.p is found.detectable is None
    assert found.needed is None
    assert welch([3.0], [3.5, 3.6]).p is None


def test_identical_arms_are_told_from_arms_without_spread():
    same = paired_difference([3.0, 3.1], [3.0, 3.1])
    assert same.identical and (same.mean, same.p) == (0, 1)
    mixed = paired_difference([3.0, 3.5], [3.5, 3.0])
    assert not mixed.identical and (mixed.mean, mixed.p) == (0, 1)
    shifted = paired_difference([3.1, 3.2, 3.3], [3.0, 3.1, 3.2])  # equal but for rounding
    assert shifted.flat and not shifted.identical and shifted.p is None
    assert shifted.mean == pytest.approx(0.1)


@pytest.mark.parametrize("count", [1, 3])
def test_equal_counts_tell_nothing_of_chance_where_equal_losses_do(count):
    losses = paired_difference([0.0] * count, [0.0] * count)
    assert losses.identical and losses.p_at(0.5) == 0
    counts = replace(losses, exact=False)
    assert not counts.identical and counts.p is counts.p_at(0.5) is None


@given(
    st.lists(st.integers(0, 98), min_size=2, max_size=9),
    st.sampled_from([str, repr, "{:.9g}".format]),
)
def test_equal_differences_of_single_precision_are_without_spread(hundredths, written):
    def logged(value: float) -> float:
        return float(written(float(np.float32(value))))

    base = [logged(one / 100) for one in hundredths]
    arm = [logged((one + 2) / 100) for one in hundredths]
    for found in (paired_difference(arm, base), welch(arm[:1] * 3, base[:1] * 3)):
        assert found.flat and found.p is None


@pytest.mark.parametrize("n", [2, 3, 5, 12])
def test_the_smallest_detectable_effect_is_found_as_often_as_it_says(n):
    level, trials = Level(power=0.8), 4000
    sd = 0.02
    effect = statistics.detectable(sd / math.sqrt(n), n - 1, level)
    draws = np.random.default_rng(n).normal(effect, sd, (trials, n))
    found = int((stats.ttest_1samp(draws, 0, axis=1).pvalue < level.alpha).sum())
    low, high = stats.binomtest(found, trials).proportion_ci(0.999, method="exact")
    assert low <= level.power <= high


@pytest.mark.full
def test_power_is_an_average_of_the_normal_over_the_spread():
    """P(|Z + shift| > t S) with S^2 = chi2 / df, as a plain sum over quantiles of S."""
    parts = (np.arange(100_000) + 0.5) / 100_000
    for freedom in (1, 2, 9, 1000):
        spread = np.sqrt(stats.chi2.ppf(parts, freedom) / freedom)
        for alpha in (0.05, 0.05 / 7):
            edge = stats.t.isf(alpha / 2, freedom)
            for shift in (0, 1, 3, 12, 400):
                above = stats.norm.sf(edge * spread - shift) + stats.norm.sf(edge * spread + shift)
                assert power(shift, freedom, alpha) == pytest.approx(above.mean(), abs=2e-5)


def pairs_of(sd: float) -> Any:
    """Standard error and degrees of freedom of so many pairs."""
    return lambda n: (sd / math.sqrt(n), n - 1)


def test_seeds_needed_is_the_first_number_with_enough_power():
    for level in (Level(), Level(power=0.9, comparisons=7), Level(confidence=0.99)):
        for effect in (0.3, 1.0, 4.0):
            n = required_seeds(effect, pairs_of(1.0), level)
            reach = [
                power(effect * math.sqrt(one), one - 1, level.strictest) for one in (n - 1, n)
            ][:: 1 if n > 2 else -1]
            assert reach[-1 if n > 2 else 0] >= level.power
            assert n == 2 or reach[0] < level.power
    # The textbook's: an effect of half a standard deviation takes 34 pairs at 5 % and 80 %.
    assert required_seeds(0.5, pairs_of(1.0), Level()) == 34


def test_more_arms_ask_for_more_and_what_was_seen_asks_for_more_than_there_was():
    one, many = (Level(comparisons=k) for k in (1, 7))
    arm, base = [3.01, 3.05, 2.99], [3.0, 3.01, 3.02]
    lenient, strict = paired_difference(arm, base, one), paired_difference(arm, base, many)
    assert all(np.less(lenient.detectable, strict.detectable))
    assert lenient.needed[0] <= strict.needed[0] and 3 < lenient.needed[1] < strict.needed[1]
    assert (lenient.p, lenient.low) == (strict.p, strict.low)


def test_welch_needs_more_seeds_than_pairs_of_correlated_runs():
    shared = np.random.default_rng(0).normal(0, 0.1, 6)
    own = np.random.default_rng(1).normal(0, 0.01, (2, 6))
    arm, base = (3.0 + shared + own[0] + 0.02).tolist(), (3.0 + shared + own[1]).tolist()
    ours, theirs = paired_difference(arm, base), welch(arm, base)
    assert all(np.less(ours.detectable, 0.3 * np.array(theirs.detectable)))
    assert all(np.less(ours.needed, theirs.needed))


def test_welch_of_equal_spreads_says_what_the_simulation_finds():
    level, n, trials = Level(), 4, 4000
    rng = np.random.default_rng(5)
    effect = statistics.detectable(math.sqrt(2 / n), 2 * (n - 1), level)
    ours, theirs = rng.normal(effect, 1, (trials, n)), rng.normal(0, 1, (trials, n))
    found = int((stats.ttest_ind(ours, theirs, axis=1).pvalue < level.alpha).sum())
    low, high = stats.binomtest(found, trials).proportion_ci(0.999, method="exact")
    assert low <= level.power <= high


def test_an_effect_of_next_to_nothing_takes_more_seeds_than_there_are():
    assert required_seeds(1e-9, pairs_of(1.0), Level()) is None
    normal = (stats.norm.isf(0.025) + stats.norm.isf(0.2)) / 0.00335
    assert required_seeds(0.00335, pairs_of(1.0), Level()) == pytest.approx(normal**2, abs=5)
    assert paired_difference([3.0, 3.1, 3.2], [3.1, 3.0, 3.2]).mean == pytest.approx(0, abs=1e-15)
    assert paired_difference([3.0, 3.1], [3.0, 3.1]).needed is None


@pytest.mark.parametrize("n", [3, 10])
def test_what_is_detectable_lies_in_its_range_as_often_as_promised(n):
    draws, level = 400, Level()
    truth = statistics.detectable(1 / math.sqrt(n), n - 1, level)
    tables = np.random.default_rng(n).normal(0, 1, (draws, n))
    ranges = [paired_difference(row, [0.0] * n, level).detectable for row in tables.tolist()]
    inside = sum(low <= truth <= high for low, high in ranges)
    low, high = stats.binomtest(inside, draws).proportion_ci(0.999, method="exact")
    assert low <= 0.95 <= high


@given(st.floats(-1, 1), st.floats(0.01, 1), st.integers(2, 30), st.floats(0, 0.5))
def test_an_end_of_the_interval_is_where_p_is_alpha(mean, error, freedom, text):
    found = Difference(kind="paired", n=3, mean=mean, error=error, freedom=freedom, text=(text, 15))
    for end in found.interval:
        assert found.p_at(end) == pytest.approx(found.level.alpha, rel=1e-6)
