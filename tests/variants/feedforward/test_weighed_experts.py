"""Weighed features of experts over rows against the plain product: the same bits, and less kept."""

from functools import partial

import pytest
import torch
from torch import Tensor

from layerlab.blocks.activation import NAMES, Activation
from layerlab.blocks.operations import chunking
from layerlab.variants.feedforward.weighed_experts import ALIKE, weigh_gated
from tests.blocks.operations.pieces import cut, drawn, same_derivatives

SHAPE = (3, 50, 2, 12)  # more rows than one piece has, and a last piece that is shorter


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    cut(monkeypatch, ALIKE * SHAPE[-1])


def features(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return drawn(SHAPE, SHAPE, (*SHAPE[:-1], 1), dtype=dtype)


def ours(name: str, gate: Tensor, up: Tensor, share: Tensor) -> Tensor:
    return weigh_gated(gate, up, share, Activation(name))


def plain(name: str, gate: Tensor, up: Tensor, share: Tensor) -> Tensor:
    return Activation(name)(gate) * up * share


@pytest.mark.parametrize("name", NAMES)
def test_value_and_derivatives(name):
    both = partial(ours, name), partial(plain, name)
    same_derivatives(*both, features(), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pieces_are_the_whole_to_the_bit(dtype):
    inputs = features(dtype)
    found, expected = (of("silu", *inputs) for of in (ours, plain))
    assert "Weighed" in type(found.grad_fn).__name__ and torch.equal(found, expected)
    given = torch.linspace(-1, 1, found.numel()).view(SHAPE).to(dtype)
    slopes = [torch.autograd.grad(one, inputs, given) for one in (found, expected)]
    assert all(map(torch.equal, *slopes))


def test_nothing_is_kept_but_what_was_given(monkeypatch):
    def kept() -> int:
        found: dict[int, Tensor] = {}

        def pack(tensor: Tensor) -> Tensor:
            found[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            ours("silu", *inputs)
        return len(found)

    inputs = features()
    assert kept() == 3
    monkeypatch.setattr(chunking, "LARGE", 10**9)
    assert kept() == 5  # the active gates too, and their product with the features


def test_an_activation_that_is_listened_to_is_called():
    heard: list[Tensor] = []
    activation = Activation("silu")
    activation.register_forward_hook(lambda module, given, out: heard.append(out))
    gate, up, share = features()
    found = weigh_gated(gate, up, share, activation)
    assert len(heard) == 1 and torch.equal(found, heard[0] * up * share)
