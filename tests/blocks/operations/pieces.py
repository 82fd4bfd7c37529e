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


def drawn(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Return normal numbers of these shapes, which get gradients."""
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(one, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for one in shapes
    ]


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
