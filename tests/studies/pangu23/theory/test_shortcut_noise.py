"""Noise through shortcuts: known gains of known activations, and planted ones."""

import numpy as np
import pytest
import torch

from layerlab.studies.pangu23.theory.shortcut_noise import (
    EVEN,
    NAMES,
    NOISE,
    SIGNAL,
    SMALL,
    judge_even,
    judge_robust,
    judge_strict,
    noise_and_bound,
    noise_and_signal,
    robustness,
)
from tests.numerics.draw import gaussian

RELU = NAMES.index("relu")


def test_relu_lets_half_of_the_energy_of_little_noise_through():
    noise = gaussian(4000, 8, seed=1)
    found = noise_and_signal(gaussian(4000, 8), torch.eye(8, dtype=torch.float64), noise)
    assert found[RELU, 0, NOISE].item() == pytest.approx(0.5**0.5, abs=0.01)
    # The variance of relu of a standard Gaussian is 1/2 - 1/(2 pi).
    assert found[RELU, 0, SIGNAL].item() == pytest.approx((0.5 - 0.5 / np.pi) ** 0.5, abs=0.01)


def test_relu_where_all_units_are_active_is_the_linear_path():
    noise = gaussian(20, 4, seed=1)
    found = noise_and_signal(100 + gaussian(20, 4), torch.eye(4, dtype=torch.float64), noise)
    assert torch.allclose(found[RELU, :2, NOISE], torch.ones(2, dtype=torch.float64))
    assert torch.allclose(found[RELU, :, SIGNAL], torch.ones(4, dtype=torch.float64))


def test_noise_along_the_features_moves_diversity_by_all_of_its_norm():
    z = gaussian(20, 4)
    z -= z.mean(0)
    assert torch.allclose(
        noise_and_signal(z, torch.eye(4, dtype=torch.float64), z)[..., EVEN],
        torch.ones(3, 4, dtype=torch.float64),
    )


def test_the_bound_is_attained_by_active_units_and_missed_by_silent_ones():
    apart = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    assert noise_and_bound(5.0, apart) == (2**0.5, 2**0.5)
    assert noise_and_bound(-5.0, apart)[0] == 0


def planted(noise, signal):
    values = np.ones((12, len(NAMES), 4, 3))
    values *= np.random.default_rng(0).normal(1, 1e-3, (12, 1, 1, 1))
    values[..., NOISE] *= noise
    values[..., SIGNAL] *= signal
    return {"Gaussian": values}


def test_a_path_that_keeps_more_than_it_lets_through_would_be_called_robust():
    for signal, word in ((0.9, "holds"), (0.3, "fails")):
        assert judge_robust(robustness(planted(0.5, signal), 0), 12).word == word
    assert judge_strict(planted(0.5, 0.5)).number == 1


@pytest.mark.parametrize(("draws", "word"), [(12, "fails"), (4, "not decided")])
def test_few_draws_decide_nothing_on_noise_without_a_mean(draws, word):
    gains = np.zeros((draws, 1, SMALL + 1, EVEN + 1))
    gains[:, 0, SMALL, EVEN] = np.linspace(0.6, 0.8, draws)
    assert judge_even({"relu": gains}, 0).word == word
