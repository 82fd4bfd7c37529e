"""A weighed sum of a sublayer, its stream and a low-rank term, and its derivatives.

Left to autograd, each weight, one number, makes a product of the size of the stream to sum over,
and the low-rank term a tensor that is only added to another.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from layerlab.blocks.operations.chunking import large, pieces
from layerlab.blocks.operations.derivative import again, redone
from layerlab.shapes import Stream


def join(
    x: Stream, y: Stream, weight: Tensor, low: Tensor | None = None, up: Tensor | None = None
) -> Stream:
    """Return the sum a y + b (x + U l), or a y + b x without U and l.

    Source: menghani24, section 2.

    Args:
        weight: a and b.
        low: l, a few features of each token.
        up: U.
    """
    given = [x, y, weight] if low is None or up is None else [x, y, weight, low, up]
    if large(x) and all(one.dtype == x.dtype for one in given) and x.dtype.itemsize >= 4:
        out: Stream = _Joined.apply(*given)
        return out
    return _join(*given)


def _join(x: Tensor, y: Tensor, weight: Tensor, *term: Tensor) -> Tensor:
    kept = x + functional.linear(*term) if term else x
    return weight[0] * y + weight[1] * kept


class _Joined(torch.autograd.Function):
    """The same in one buffer; the gradients of the weights are dot products."""

    @staticmethod
    def forward(x: Tensor, y: Tensor, weight: Tensor, *term: Tensor) -> Tensor:
        a, b = weight.tolist()
        out = torch.mul(y.contiguous(), a).add_(x, alpha=b)
        if term:
            low, up = term
            out.flatten(0, -2).addmm_(low.flatten(0, -2), up.t(), alpha=b)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, y, weight, *term = ctx.saved_tensors
        if redone(gradient):
            return again(_join, (x, y, weight, *term), (gradient,))
        a, b = weight.tolist()
        gradient = gradient.contiguous()
        down, across = torch.empty_like(gradient), torch.empty_like(gradient)
        totals = torch.zeros_like(weight)
        for rows in zip(*map(pieces, (gradient, x, y, down, across)), strict=True):
            given, *factors = (one.flatten() for one in rows[:3])
            totals += torch.stack([given.dot(one) for one in reversed(factors)])
            torch.mul(rows[0], b, out=rows[3])
            torch.mul(rows[0], a, out=rows[4])
        if not term:
            return down, across, totals
        low, up = term
        slope, moved = down.flatten(0, -2) @ up, gradient.flatten(0, -2).t() @ low.flatten(0, -2)
        totals[1] += (moved * up).sum()
        return down, across, totals, slope.view_as(low), moved * b
