"""Normed powers over rows against a literal transcription: value and derivatives."""

import pytest
import torch
from torch import Tensor

from layerlab.blocks.operations import chunking
from layerlab.variants.feedforward.normed_powers import normed_powers
from tests.blocks.operations.pieces import cut, drawn, same_derivatives

EPSILON = 1e-3


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    cut(monkeypatch)


def powers(order: int) -> list[Tensor]:
    return drawn((3, 50, 12), (order,), (1,))


def rows(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return normed_powers(x, weight, bias, EPSILON)


def plain(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    y = bias
    for power, factor in enumerate(weight, start=1):
        term = x**power
        y = y + factor * term / (term.square().mean(-1, keepdim=True) + EPSILON).sqrt()
    return y


@pytest.mark.parametrize("order", [1, 2, 3, 8])
def test_value_and_derivatives(order):
    same_derivatives(rows, plain, powers(order), rtol=1e-12, atol=1e-11)


def test_pieces_are_the_whole_to_the_bit(monkeypatch):
    inputs = [one.float() for one in powers(3)]
    found = normed_powers(*inputs, EPSILON)
    monkeypatch.setattr(chunking, "LARGE", 10**9)
    assert torch.equal(found, normed_powers(*inputs, EPSILON))


def test_bfloat16_features_with_float32_weights():
    x, weight, bias = (one.detach().float().requires_grad_() for one in powers(3))
    short = x.detach().bfloat16().requires_grad_()
    found = normed_powers(short, weight, bias, EPSILON)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, normed_powers(short.float(), weight, bias, EPSILON).bfloat16())
    found.sum().backward()
    assert short.grad.dtype == torch.bfloat16 and weight.grad.dtype == torch.float32
