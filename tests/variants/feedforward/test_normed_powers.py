"""Normed powers over rows against a literal transcription: value, derivatives, directions."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from layerlab.blocks.operations import chunking
from layerlab.variants.feedforward.normed_powers import normed_powers

EPSILON = 1e-3


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Several pieces, the last of which is shorter."""
    monkeypatch.setattr(chunking, "LARGE", 1)
    monkeypatch.setattr(chunking, "PIECE", 16 * 12)
    yield


def drawn(order: int, *shape: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(size, generator=generator, dtype=torch.float64).requires_grad_()
        for size in (shape, (order,), (1,))
    ]


def plain(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    y = bias
    for power, factor in enumerate(weight, start=1):
        term = x**power
        y = y + factor * term / (term.square().mean(-1, keepdim=True) + EPSILON).sqrt()
    return y


@pytest.mark.parametrize("order", [1, 2, 3, 8])
def test_value_and_derivatives(order: int) -> None:
    inputs = drawn(order, 3, 50, 12)
    found, expected = normed_powers(*inputs, EPSILON), plain(*inputs)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)
    given = torch.linspace(-1, 1, found.numel(), dtype=torch.float64).view(found.shape)
    ours = torch.autograd.grad(found, inputs, given)
    for one, other in zip(ours, torch.autograd.grad(expected, inputs, given), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-11)


def test_gradients_are_those_of_small_steps_twice() -> None:
    inputs = drawn(3, 2, 3, 4)
    assert torch.autograd.gradcheck(lambda *given: normed_powers(*given, EPSILON), inputs)
    assert torch.autograd.gradgradcheck(lambda *given: normed_powers(*given, EPSILON), inputs)


def test_directions() -> None:
    inputs = tuple(one.detach() for one in drawn(4, 3, 20, 12))
    moved = tuple(torch.cos(one) for one in inputs)
    found = torch.func.jvp(lambda *given: normed_powers(*given, EPSILON), inputs, moved)[1]
    expected = torch.func.jvp(plain, inputs, moved)[1]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    x, *rest = inputs
    found = torch.func.jvp(lambda y: normed_powers(y, *rest, EPSILON), (x,), moved[:1])[1]
    expected = torch.func.jvp(lambda y: plain(y, *rest), (x,), moved[:1])[1]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_pieces_are_the_whole_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = [one.float() for one in drawn(3, 3, 50, 12)]
    found = normed_powers(*inputs, EPSILON)
    monkeypatch.setattr(chunking, "LARGE", 10**9)
    assert torch.equal(found, normed_powers(*inputs, EPSILON))


def test_bfloat16_features_with_float32_weights() -> None:
    x, weight, bias = (one.detach().float().requires_grad_() for one in drawn(3, 3, 50, 12))
    short = x.detach().bfloat16().requires_grad_()
    found = normed_powers(short, weight, bias, EPSILON)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, normed_powers(short.float(), weight, bias, EPSILON).bfloat16())
    found.sum().backward()
    assert short.grad.dtype == torch.bfloat16 and weight.grad.dtype == torch.float32
