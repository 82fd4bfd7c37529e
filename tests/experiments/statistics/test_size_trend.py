"""The line of gains over sizes: REML against statsmodels, its degrees, and what it forecasts."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
from statsmodels.regression.mixed_linear_model import MixedLM

from layerlab.experiments.statistics.differences import (
    Difference,
    Level,
    paired_difference,
    welch,
)
from layerlab.experiments.statistics.moderated_variance import Prior
from layerlab.experiments.statistics.size_trend import (
    SizeTrend,
    borrow,
    lend,
    reml_scatter,
    sizes_of,
)

PLACES = (20.0, 21.5, 23.0)


def drawn(seed: int, places: Sequence[float], seeds: int, scatter: float) -> list[list[float]]:
    """Gains about a line, with scatter of sizes and noise of seeds inside."""
    rng = np.random.default_rng(seed)
    return [
        list(1 + 0.3 * place + scatter * rng.standard_normal() + rng.standard_normal(seeds))
        for place in places
    ]


def differences(gains: Sequence[Sequence[float]]) -> list[Difference]:
    return [paired_difference([-one for one in own], [0.0] * len(own)) for own in gains]


def trend(gains: Sequence[Sequence[float]], lent: bool = False) -> SizeTrend:
    found = differences(gains)
    by_seed = [dict(enumerate(own)) for own in gains]
    common = lend(found) if lent else None
    return SizeTrend(sizes_of(PLACES[: len(gains)], found, by_seed, common), Level())


def mixed_scatter(places: Sequence[float], gains: Sequence[Sequence[float]]) -> float:
    """The scatter of sizes by REML with a random effect of each size, as statsmodels fits it."""
    table = pd.DataFrame(
        [(place, gain) for place, own in zip(places, gains, strict=True) for gain in own],
        columns=["x", "gain"],
    )
    design = np.column_stack([np.ones(len(table)), table["x"]])
    oracle = MixedLM(table["gain"], design, groups=table["x"]).fit(reml=True)
    return math.sqrt(float(np.asarray(oracle.cov_re)[0, 0]))


@pytest.mark.parametrize(("seed", "scatter", "sizes"), [(1, 3.0, 6), (2, 1.5, 5), (4, 4.0, 4)])
def test_scatter_of_sizes_is_that_of_a_mixed_model(seed, scatter, sizes):
    places = [20.0 + number for number in range(sizes)]
    gains = drawn(seed, places, 4, scatter)
    wanted = mixed_scatter(places, gains)
    assert wanted > 0.1 and reml_scatter(places, gains) == pytest.approx(wanted, rel=1e-3)


def test_scatter_takes_unequal_numbers_of_seeds():
    gains = drawn(7, (20.0, 21.0, 22.0, 23.0), 5, 3.0)
    gains[1], gains[2] = gains[1][:2], gains[2][:3]
    places = [20.0, 21.0, 22.0, 23.0]
    wanted = mixed_scatter(places, gains)
    assert reml_scatter(places, gains) == pytest.approx(wanted, rel=1e-3)


def test_sizes_on_a_line_do_not_scatter():
    exact = [[place - 0.1, place + 0.1] for place in PLACES]
    assert reml_scatter(PLACES, exact) == 0.0
    assert reml_scatter(PLACES[:2], exact[:2]) == 0.0


def test_the_slope_is_that_of_least_squares_with_welchs_degrees():
    gains = [[0.9, 1.0, 1.2], [1.9, 2.1, 2.0], [3.3, 2.7, 3.0]]
    found = trend(gains).slope
    means = [np.mean(own) for own in gains]
    assert found.mean == pytest.approx(np.polyfit(PLACES, means, 1)[0])
    # Of three equal steps the middle one has no weight: it is the difference of the ends.
    ends = [np.var(own, ddof=1) / 3 for own in (gains[0], gains[2])]
    assert found.error == pytest.approx(math.sqrt(sum(ends)) / 3)
    assert found.freedom == pytest.approx(sum(ends) ** 2 / (ends[0] ** 2 / 2 + ends[1] ** 2 / 2))
    assert found.p is not None and 0 < found.p < 1


def test_sizes_tell_of_each_others_noise_no_surer_than_they_are_many():
    gains = [[0.9, 1.0, 1.2], [1.9, 2.1, 2.0], [3.3, 2.7, 3.0]]
    found = differences(gains)
    common = lend(found)
    assert common is not None and common.freedom <= 2
    for one in found:
        own, lent = one.error or 0.0, borrow(one, common)
        middle = math.sqrt(common.variance / 3)
        assert min(own, middle) <= (lent.error or 0.0) <= max(own, middle)
        assert lent.freedom == one.freedom + common.freedom and lent.kind == "moderated"
    flat = Difference(kind="paired", n=3, mean=1.0, error=0.0, flat=True)
    assert borrow(flat, Prior(1.0, 2.0)) is flat and lend([flat, flat]) is None
    # A trend takes the drawn variances, and the degrees of the seeds themselves.
    alone, together = trend(gains).slope, trend(gains, lent=True).slope
    assert together.freedom <= 4 and alone.mean == together.mean


def test_each_size_is_forecast_from_the_others():
    gains = [[0.0, 0.1, -0.1], [1.0, 1.1, 0.9], [5.0, 5.1, 4.9]]
    found = trend(gains)
    errors = [one.error for one in found.left_out]
    # Three equal steps: each error is the bend 5 - 2 x 1 + 0 = 3, the middle one's minus its half.
    assert errors == pytest.approx([3.0, -1.5, 3.0])
    assert found.left_out[2].forecast == pytest.approx(2.0)


def test_a_forecast_is_less_sure_by_the_largest_error_of_leaving_out():
    straight = trend([[0.0, 0.1, -0.1], [1.0, 1.1, 0.9], [2.0, 2.1, 1.9]])
    bent = trend([[0.0, 0.1, -0.1], [1.0, 1.1, 0.9], [5.0, 5.1, 4.9]])
    there = PLACES[-1] + straight.reach
    assert straight.beyond(there).mean == pytest.approx(3.0)
    assert straight.beyond(there).line == pytest.approx((0.0, 1), abs=1e-9)
    error, freedom = bent.beyond(there).line or (0.0, 0)
    assert error > 3.0 and freedom == 1
    # 12.7 is the quantile of t with the one degree that three sizes about a line have.
    low, high = bent.beyond(there).interval or (0.0, 0.0)
    assert (high - low) / 2 == pytest.approx(12.706 * error, rel=1e-3)
    assert straight.within_reach(there) and not straight.within_reach(there + 1)


def test_two_sizes_have_a_slope_and_test_no_forecast():
    found = trend([[0.0, 0.1, -0.1], [1.0, 1.1, 0.9]])
    assert found.slope.mean == pytest.approx(1 / 1.5)
    assert found.left_out == [] and found.reach == 0.0
    assert not found.within_reach(PLACES[1])


def test_a_size_without_an_interval_is_no_part_of_the_line():
    found = differences([[0.0, 0.1], [1.0], [2.0, 2.3]])
    kept = sizes_of(PLACES, found, [{1: 0.0, 2: 0.1}, {1: 1.0}, {1: 2.0, 2: 2.3}], None)
    assert [one.doublings for one in kept] == [20.0, 23.0]


def test_a_size_whose_arms_share_no_seed_is_no_part_of_the_line():
    found = [welch([0.0, 0.1], [1.0, 1.3]), *differences([[1.0, 1.2], [2.0, 2.3]])]
    kept = sizes_of(PLACES, found, [{}, {1: 1.0, 2: 1.2}, {1: 2.0, 2: 2.3}], None)
    assert found[0].interval and [one.doublings for one in kept] == [21.5, 23.0]


@pytest.mark.full
@pytest.mark.parametrize("scatter", [0.0, 2.0, 6.0])
def test_forecasts_are_as_sure_as_they_say_where_sizes_scatter(scatter):
    rng = np.random.default_rng(3)
    draws, missed = 500, 0
    there = 2 * PLACES[2] - PLACES[1]
    for _ in range(draws):
        *sizes, truth = scatter * rng.standard_normal(4)
        gains = [[true + rng.standard_normal() for _ in range(5)] for true in sizes]
        low, high = trend(gains).beyond(there).interval or (0.0, 0.0)
        missed += not low <= truth <= high
    assert missed / draws < 0.05 + 3 * math.sqrt(0.05 * 0.95 / draws)


@pytest.mark.full
@pytest.mark.parametrize("spreads", [(1.0, 1.0, 1.0), (1.5, 1.0, 0.7), (0.7, 1.0, 1.5)])
def test_gains_that_stay_are_rarely_said_to_change(spreads):
    rng = np.random.default_rng(5)
    draws, false = 1000, 0
    for _ in range(draws):
        gains = [[3 + spread * rng.standard_normal() for _ in range(3)] for spread in spreads]
        false += (trend(gains, lent=True).slope.p or 0.0) < 0.05
    assert false / draws < 0.05 + 3 * math.sqrt(0.05 * 0.95 / draws)
