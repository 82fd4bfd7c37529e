"""What a choice of items adds to a mean: the components of a two-way table, and their sum."""

import numpy as np
import pytest

from layerlab.experiments.statistics.sampling_error import sampling_error


def drawn(rng: np.random.Generator, seeds: int, items: int, spread: float) -> np.ndarray:
    """A table whose items differ by a spread, with noise of 1 on top."""
    return spread * rng.standard_normal(items) + rng.standard_normal((seeds, items))


def test_of_one_seed_it_is_the_error_of_a_mean():
    values = np.array([[1.0, 2.0, 4.0, 7.0]])
    error, freedom = sampling_error([(1.0, values)])
    assert error == pytest.approx(values.std(ddof=1) / 2) and freedom == 3


def test_noise_of_single_runs_is_none_of_it():
    rng = np.random.default_rng(0)
    squares = [sampling_error([(1.0, drawn(rng, 4, 50, 2.0))])[0] ** 2 for _ in range(2000)]
    # The variance of a mean over 50 items that differ by 2, to its own standard error.
    assert np.mean(squares) == pytest.approx(4 / 50, abs=4 * np.std(squares) / np.sqrt(2000))


def test_parts_add_by_the_squares_of_their_weights():
    rng = np.random.default_rng(1)
    first, second = drawn(rng, 3, 20, 3.0), drawn(rng, 3, 40, 5.0)
    alone = [sampling_error([(1.0, one)])[0] for one in (first, second)]
    whole, freedom = sampling_error([(0.25, first), (0.75, second)])
    assert whole == pytest.approx(np.hypot(0.25 * alone[0], 0.75 * alone[1]))
    assert 39 < freedom < 58
    assert sampling_error([(1.0, first), (0.0, second)])[0] == pytest.approx(alone[0])


def test_items_that_are_all_alike_add_nothing():
    same = np.ones((3, 10))
    assert sampling_error([(1.0, same)]) == (0.0, 9)
    assert sampling_error([(0.5, same), (0.5, same)]) == (0.0, 18)
