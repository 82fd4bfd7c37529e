"""Gated features of experts, each weighed by its share of a token, a few rows at a time.

Left to autograd, what each of the three steps gives is kept for the backward pass, and passed over
in memory; here it is made again from gates and features, over rows that stay in the cache.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from layerlab.blocks.activation import Activation, activate, apply_slope
from layerlab.blocks.operations.chunking import large, rows
from layerlab.blocks.operations.derivative import again, bare, redone
from layerlab.blocks.operations.recompute import recompute
from layerlab.shapes import Features

# An activation rounds the last numbers of a tensor, fewer than these, in another way than the rest:
# with so many rows to a piece they are the last of the whole.
ALIKE = 64


def weigh_gated(gate: Features, up: Features, share: Tensor, activation: nn.Module) -> Features:
    """Return activation(gate) * up * share.

    Source: shazeer20, equation 6; the share: xue21, section on the mixture of experts.

    Args:
        share: one number for all features of a row.
    """
    if large(gate) and bare(activation, Activation) and gate.dtype == up.dtype == share.dtype:
        product: Features = _Weighed.apply(gate, up, share, activation.name)
        return product

    def plain(gate: Tensor, up: Tensor, share: Tensor) -> Tensor:
        out: Tensor = activation(gate) * up * share
        return out

    return recompute(plain, gate, up, share)


class _Weighed(torch.autograd.Function):
    """The same bits, and derivatives, of which only what was given is kept."""

    @staticmethod
    def forward(gate: Tensor, up: Tensor, share: Tensor, name: str) -> Tensor:
        out = torch.empty_like(gate, memory_format=torch.contiguous_format)
        for target, one, other, weight in _pieces(out, gate, up, share):
            torch.mul(activate(one, name) * other, weight, out=target)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, ctx.name = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # read once: checkpointing refuses a second time
        if redone(gradient):

            def plain(gate: Tensor, up: Tensor, share: Tensor) -> Tensor:
                return activate(gate, ctx.name) * up * share

            return *again(plain, saved, (gradient,)), None
        slopes = [torch.empty_like(one, memory_format=torch.contiguous_format) for one in saved]
        for given, gate, up, share, *targets in _pieces(gradient, *saved, *slopes):
            active = activate(gate, ctx.name)
            torch.sum(given * (active * up), -1, keepdim=True, out=targets[2])
            given = given * share
            torch.mul(given, active, out=targets[1])
            targets[0].copy_(apply_slope(given * up, gate, ctx.name))
        return *slopes, None


def _pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Return views of a few rows of each."""
    count = max(1, rows(tensors[0].shape[-1]) // ALIKE) * ALIKE
    return zip(*(one.reshape(-1, one.shape[-1]).split(count) for one in tensors), strict=True)
