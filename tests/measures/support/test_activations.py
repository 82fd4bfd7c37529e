"""Lipschitz constants of activations, against their slopes on a grid."""

import pytest
import torch

from layerlab.measures.support.activations import ACTIVATIONS, Activation

DOUBLE = torch.finfo(torch.float64).eps


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda activation: activation.name)
def test_constant_is_the_largest_slope_rounded_up(activation: Activation) -> None:
    grid = torch.linspace(-30, 30, 600_001, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(activation.function(grid).sum(), grid)
    largest = float(slope.abs().max())
    if activation.name == "relu-squared":
        assert largest == pytest.approx(60)
        return
    # The slope is flat where it is largest: a grid of step h misses h^2 of it.
    assert largest <= activation.lipschitz + 4 * DOUBLE <= largest + 1.1e-5
