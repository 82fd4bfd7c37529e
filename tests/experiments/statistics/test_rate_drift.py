"""The best rate between the rates of a sweep, and how it moves with size."""

import math

import pytest

from layerlab.experiments.statistics.differences import Level
from layerlab.experiments.statistics.rate_drift import best_octave, drift

RATES = (1e-3, 2e-3, 4e-3, 8e-3)


def bowl(best: float) -> dict[float, float]:
    return {rate: 3 + 0.1 * (math.log2(rate) - best) ** 2 for rate in RATES}


@pytest.mark.parametrize("best", [math.log2(2e-3), math.log2(3e-3), math.log2(3.7e-3)])
def test_a_parabola_is_found_where_it_lies(best):
    assert best_octave(bowl(best)) == pytest.approx(best)


def test_a_best_rate_at_an_end_is_not_known():
    assert best_octave(bowl(math.log2(1e-3) - 2)) is None
    assert best_octave(bowl(math.log2(8e-3) + 1)) is None
    assert best_octave({}) is None and best_octave({1e-3: 3.0}) is None


def test_beside_a_rate_that_diverged_the_best_is_taken_as_it_is():
    found = best_octave({**bowl(math.log2(4e-3) + 0.3), 8e-3: math.inf})
    assert found == pytest.approx(math.log2(4e-3))
    assert best_octave(dict.fromkeys(RATES, math.inf)) is None
    found = best_octave({**bowl(math.log2(2e-3)), 8e-3: math.inf})
    assert found == pytest.approx(math.log2(2e-3))


def test_drift_is_in_octaves_per_doubling_over_the_seeds():
    octaves = [
        {1: -8.0, 2: -8.2, 3: -7.8},
        {1: -8.5, 2: -8.6, 3: -8.4},
        {1: -9.0, 2: -9.1, 3: -9.0},
    ]
    found = drift([20.0, 21.0, 22.0], octaves, Level())
    assert found.mean == pytest.approx((-1.0 / 2 - 0.9 / 2 - 1.2 / 2) / 3)
    assert found.n == 3 and found.interval is not None
