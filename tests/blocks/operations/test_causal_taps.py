"""Weighed earlier tokens, taken a few at a time: the bits of the plain sum, and its derivatives."""

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from layerlab.blocks.operations import causal_taps
from layerlab.blocks.operations.causal_taps import tap, weigh
from tests.blocks.operations.pieces import cut, drawn, same_derivatives

AGES = torch.tensor([[0, 1, 2, 0, 1, 2, 3] * 6 + [0] * 8, list(range(50)), [0] * 30 + [*range(20)]])
DOCUMENTS = [None, AGES, torch.arange(50).unsqueeze(0)]


@pytest.fixture(autouse=True, params=[16 * 12, 130 * 12], ids=["within", "several"])
def small_pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of one sequence, whose last is shorter, or of two of the three sequences."""
    cut(monkeypatch, request.param)


def taps(kernel: int, rows: int = 12, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return drawn((3, 50, 12), (rows, kernel), dtype=dtype)


def plain(x: Tensor, weight: Tensor, ages: Tensor | None, *, added: bool) -> Tensor:
    return weigh(functional.pad(x, (0, 0, weight.shape[1] - 1, 0)), weight, ages, added=added)


@pytest.mark.parametrize("ages", DOCUMENTS, ids=["one", "packed", "counted"])
@pytest.mark.parametrize("kernel", [1, 2, 4, 21])
@pytest.mark.parametrize("added", [False, True])
def test_value_and_derivatives(kernel, added, ages):
    ours, theirs = (partial(one, ages=ages, added=added) for one in (tap, plain))
    assert torch.equal(ours(*taps(kernel)), theirs(*taps(kernel)))
    same_derivatives(ours, theirs, taps(kernel), rtol=0, atol=1e-12)


def test_one_row_of_weights_for_all_channels():
    ours, theirs = (partial(one, ages=None, added=False) for one in (tap, plain))
    same_derivatives(ours, theirs, taps(3, rows=1), rtol=0, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ages", DOCUMENTS[:2], ids=["one", "packed"])
def test_pieces_are_the_whole_to_the_bit(dtype, ages):
    inputs = taps(4, dtype=dtype)
    for added in (False, True):
        found = tap(*inputs, ages, added=added)
        assert torch.equal(found, plain(*inputs, ages, added=added))


def test_bfloat16_features_with_float32_weights():
    x, weight = taps(4, dtype=torch.float32)
    short = x.detach().bfloat16().requires_grad_()
    found = tap(short, weight, AGES, added=True)
    assert torch.equal(found, plain(short, weight, AGES, added=True))
    found.sum().backward()
    assert short.grad.dtype == torch.bfloat16 and weight.grad.dtype == torch.float32
    exact = torch.autograd.grad(plain(x, weight, AGES, added=True).sum(), x)[0]
    torch.testing.assert_close(short.grad, exact.bfloat16(), rtol=0, atol=0)


@pytest.mark.full
@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("ages", DOCUMENTS[:2], ids=["one", "packed"])
@pytest.mark.parametrize(("tokens", "kernel", "rows"), [(50, 4, 12), (3, 5, 12), (50, 3, 1)])
def test_a_compiler_keeps_what_it_read_and_gives_the_same_derivatives(
    ages, tokens, kernel, rows, copied, monkeypatch
):
    monkeypatch.setattr(causal_taps, "_follow", partial(causal_taps._follow, copied=copied))
    torch._dynamo.reset()
    ages = None if ages is None else ages[:, :tokens]
    compiled = torch.compile(tap, backend="aot_eager", fullgraph=True)
    ours, theirs = (partial(one, ages=ages, added=True) for one in (compiled, plain))
    inputs, kept = drawn((3, tokens, 12), (rows, kernel)), set[tuple[int, ...]]()
    with torch.autograd.graph.saved_tensors_hooks(
        lambda one: (kept.add(tuple(one.shape)), one)[1], lambda one: one
    ):
        found = ours(*inputs)
    assert torch.equal(found, theirs(*inputs))
    assert (3, tokens, 12) in kept and (3, tokens + kernel - 1, 12) not in kept
    same_derivatives(ours, theirs, inputs, rtol=0, atol=1e-12)
