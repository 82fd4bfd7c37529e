"""Activations: the same bits as the published code, and derivatives of every kind."""

import pytest
import torch
from torch.nn import functional
from transformers.activations import ACT2FN

from layerlab.blocks.activation import NAMES, Prelu, activate, gelu_tanh
from layerlab.model.surgery.convert import ACTIVATIONS

EQUAL = {theirs: ours for theirs, ours in ACTIVATIONS.items() if theirs != "gelu_pytorch_tanh"}


@pytest.mark.parametrize(("theirs", "ours"), EQUAL.items())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_bits_are_those_of_transformers(theirs, ours, dtype):
    x = torch.linspace(-9, 9, 1001).to(dtype).view(7, 143)
    assert torch.equal(activate(x, ours), ACT2FN[theirs](x))


@pytest.mark.parametrize("name", NAMES)
def test_derivatives_are_those_of_finite_differences(name):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 9, generator=generator, dtype=torch.float64)
    x = torch.where(x.abs() < 0.1, x + 0.3, x).requires_grad_()  # away from the kinks
    assert torch.autograd.gradcheck(lambda y: activate(y, name), (x,), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda y: activate(y, name), (x,))


def test_gelu_goes_through_function_transforms():
    x, direction = torch.linspace(-3, 3, 12).view(3, 4), torch.ones(3, 4)
    slope = torch.func.jvp(gelu_tanh, (x,), (direction,))[1]
    expected = torch.func.jvp(lambda y: functional.gelu(y, approximate="tanh"), (x,), (direction,))[
        1
    ]
    # Both are the derivative of one function; each rounds a few operations of size one.
    torch.testing.assert_close(slope, expected, rtol=0, atol=8 * torch.finfo(torch.float32).eps)


def test_gelu_is_mapped_over_a_batch():
    x = torch.linspace(-3, 3, 12).view(3, 4)
    assert torch.equal(torch.func.vmap(gelu_tanh)(x), gelu_tanh(x))
    slopes = torch.func.vmap(torch.func.grad(lambda row: gelu_tanh(row).sum()))(x)
    whole = torch.func.grad(lambda y: gelu_tanh(y).sum())(x)
    torch.testing.assert_close(slopes, whole, rtol=0, atol=4 * torch.finfo(torch.float32).eps)


def test_prelu_is_pytorchs():
    unit = Prelu(5)
    with torch.no_grad():
        unit.slope.copy_(torch.linspace(0.1, 0.5, 5))
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(unit(x), functional.prelu(x, unit.slope))
