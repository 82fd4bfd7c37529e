"""Weighted sums of streams by lookup against products in float64, with their gradients."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from layerlab.blocks.operations import chunking, stream_mixing
from layerlab.variants.residual.hyper import NormedRows, _normed_rows
from tests.model.small import shaken, small, tokens

UNIT = 2.0**-24


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunking, "LARGE", 0)


def drawn(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*one, generator=generator).to(dtype) for one in shapes]


def slopes(function: Callable[..., Any], inputs: list[Tensor]) -> list[Tensor]:
    """What comes out, and the gradients of a fixed sum of it; inputs are left as they are."""
    leaves = [one.clone().requires_grad_() for one in inputs]
    found = function(leaves[0] * 1, *leaves[1:])  # a leaf may not be written in place
    weights = drawn(*(tuple(one.shape) for one in found), dtype=inputs[0].dtype)
    total = sum((one * weight).sum() for one, weight in zip(found, weights, strict=True))
    return [*found, *torch.autograd.grad(total, leaves)]


def compare(function: Callable[..., Any], inputs: list[Tensor], terms: int) -> None:
    """Float32 against float64: as many roundings as terms, of numbers below 6 each."""
    found = slopes(function, inputs)
    exact = slopes(function, [one.double() for one in inputs])
    for one, other in zip(found, exact, strict=True):
        bound = terms * UNIT * 6 * max(other.abs().max().item(), 1.0)
        torch.testing.assert_close(one.double(), other, rtol=0, atol=bound)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("count", [1, 2, 4])
def test_mixing_by_lookup_is_the_product(count):
    inputs = drawn((2, 5, count, 24), (2, 5, count + 1, count))
    assert "_Mix" in stream_mixing.mix(inputs[0].requires_grad_(), inputs[1])[0].grad_fn.name()
    compare(stream_mixing.mix, [one.detach() for one in inputs], 24 + count)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("count", [1, 3, 4])
def test_writing_in_place_is_the_product(count):
    inputs = drawn((2, 5, count, 24), (2, 5, count), (2, 5, 24))
    compare(stream_mixing.add, inputs, 24 + count)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("output", [0, 1])
def test_a_gradient_may_come_back_to_one_output_alone(output):
    streams, weights, y = drawn((2, 5, 4, 24), (2, 5, 4), (2, 5, 24))
    compare(
        lambda *given: stream_mixing.add(*given)[output : output + 1], [streams, weights, y], 28
    )
    rows = drawn((2, 5, 5, 4))[0]
    compare(lambda *given: stream_mixing.mix(*given)[output : output + 1], [streams, rows], 28)


@pytest.mark.full
@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", ["hyper-connections", "mhc"])
def test_a_model_with_lookups_learns_as_one_without(name, monkeypatch):
    """The same gradients to what float32 leaves, and a gradient of a gradient too."""
    model = shaken(small(name, dtype=torch.float32))
    model.set_attn_implementation("eager")  # which has a second derivative
    found = [learned(model)]
    monkeypatch.setattr(chunking, "LARGE", 2**60)
    found.append(learned(model))
    for one, other in zip(*found, strict=True):
        error = (one - other).norm()
        assert error <= 2000 * UNIT * max(other.norm().item(), 1e-3)


def learned(model: torch.nn.Module) -> list[Tensor]:
    loss = model(tokens()).logits.square().mean()
    parameters = list(model.parameters())
    first = torch.autograd.grad(loss, parameters, create_graph=True)
    size = sum(one.square().sum() for one in first)
    second = torch.autograd.grad(size, parameters)
    plain = torch.autograd.grad(model(tokens()).logits.square().mean(), parameters)
    return [*plain, *second]


def test_a_normed_product_has_the_value_of_torchs_own_layer_norm():
    inputs = drawn((2, 3, 8), (8,), (8,), (4, 8), dtype=torch.float64)
    found, expected = NormedRows.apply(*inputs, 1e-5)[0], _normed_rows(*inputs, 1e-5)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_a_constant_row_is_normed_to_its_bias():
    """Its variance is rounding, which must not make it negative."""
    x = torch.full((1, 2, 256), 1000.1)
    gain, bias, weight = torch.ones(256), torch.zeros(256), drawn((4, 256))[0]
    assert NormedRows.apply(x, gain, bias, weight, 1e-5)[0].isfinite().all()


@pytest.mark.parametrize("offset", [1, 2, 3])
def test_where_a_weight_lies_in_memory_changes_no_bit(offset):
    """A loaded checkpoint has its weights at any place of a file."""
    x, gain, bias, weight = drawn((2, 3, 64), (64,), (64,), (6, 64))
    moved = torch.empty(weight.numel() + offset)[offset:].view_as(weight).copy_(weight)
    found = NormedRows.apply(x, gain, bias, moved, 1e-5)[0]
    assert torch.equal(found, NormedRows.apply(x, gain, bias, weight, 1e-5)[0])
