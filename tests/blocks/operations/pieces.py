"""What holds of a function over rows that is taken a few rows at a time, beside the plain one."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from layerlab.blocks.operations import chunking

Function = Callable[..., Tensor]


def cut(monkeypatch: pytest.MonkeyPatch, numbers: int = 16 * 12) -> None:
    """Cut what has three sequences of 50 tokens into pieces, the last of which is shorter."""
    monkeypatch.setattr(chunking, "LARGE", 1)
    monkeypatch.setattr(chunking, "PIECE", numbers)


def same_derivatives(
    ours: Function, plain: Function, inputs: Sequence[Tensor], rtol: float, atol: float
) -> None:
    expected = plain(*inputs)
    given = torch.linspace(-1, 1, expected.numel(), dtype=torch.float64).view(expected.shape)
    theirs = torch.autograd.grad(expected, inputs, given)
    for found in (ours(*inputs), checkpoint(ours, *inputs, use_reentrant=False)):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)
        for one, other in zip(torch.autograd.grad(found, inputs, given), theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=rtol, atol=atol)


def same_directions(
    ours: Function, plain: Function, inputs: Sequence[Tensor], rtol: float = 0, atol: float = 1e-13
) -> None:
    """Check directions in all inputs, and in the first alone."""
    inputs = tuple(one.detach() for one in inputs)
    moved = tuple(torch.cos(one) for one in inputs)
    for count in (len(inputs), 1):
        rest = inputs[count:]
        found, expected = (
            torch.func.jvp(
                lambda *some, f=f, rest=rest: f(*some, *rest), inputs[:count], moved[:count]
            )[1]
            for f in (ours, plain)
        )
        torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)
