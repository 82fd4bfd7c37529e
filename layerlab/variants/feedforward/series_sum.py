"""The sum of a series of activations, a few rows at a time."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from layerlab.blocks.activation import activate, apply_slope
from layerlab.blocks.operations.chunking import pieces, worthwhile
from layerlab.blocks.operations.derivative import again, redone
from layerlab.blocks.operations.recompute import write_gradient
from layerlab.shapes import Features

Numbers = Sequence[Tensor]


def series(x: Features, names: Sequence[str], scales: Numbers, shifts: Numbers) -> Features:
    """Return f_1(a_1 x + b_1) + sum over i > 1 of [f_i(a_i x + b_i) - f_i(b_i)].

    Source: pangu23, equation 7; the terms less their values at rest: Own.

    Args:
        names: of the activations f_i.
        scales: a_i, one number for all channels or one for each.
        shifts: b_i, alike.
    """
    if not worthwhile(x):
        return write_gradient(_sum(x, names, scales, shifts))
    y: Features = _Series.apply(x, tuple(names), *scales, *shifts)
    return y


def _sum(x: Tensor, names: Sequence[str], scales: Numbers, shifts: Numbers) -> Tensor:
    rests = [resting(shift.to(x.dtype), x, name) for name, shift in zip(names, shifts, strict=True)]
    return _add_terms(x, names, scales, shifts, rests)


def _add_terms(
    x: Tensor, names: Sequence[str], scales: Numbers, shifts: Numbers, rests: Numbers
) -> Tensor:
    total = None
    for name, scale, shift, rest in zip(names, scales, shifts, rests, strict=True):
        scale, shift = scale.to(x.dtype), shift.to(x.dtype)
        term = activate(torch.addcmul(shift, x, scale), name)
        total = term if total is None else (term - rest).add_(total)
    assert total is not None, "a series has a first term"
    return total


def resting(shift: Tensor, x: Tensor, name: str) -> Tensor:
    """Return what a term gives where its argument is zero, rounded as a row of features is."""
    width = x.shape[-1]
    return activate(shift if len(shift) == width else shift.repeat(width), name)


class _Series(torch.autograd.Function):
    """The same sum and its derivatives, over rows that stay in the cache."""

    @staticmethod
    def forward(x: Tensor, names: tuple[str, ...], *numbers: Tensor) -> Tensor:
        scales, shifts = _halves(numbers)
        y = torch.empty_like(x, memory_format=torch.contiguous_format)
        shifts = [one.to(x.dtype) for one in shifts]
        rests = [resting(one, x, name) for name, one in zip(names, shifts, strict=True)]
        for rows, target in zip(pieces(x), pieces(y), strict=True):
            target.copy_(_add_terms(rows, names, scales, shifts, rests))
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, ctx.names, *numbers = inputs
        ctx.save_for_backward(x, *numbers)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, *numbers = ctx.saved_tensors
        if redone(gradient):

            def plain(x: Tensor, *numbers: Tensor) -> Tensor:
                return _sum(x, ctx.names, *_halves(numbers))

            first, *others = again(plain, (x, *numbers), (gradient,))
            return first, None, *others
        slope = torch.empty_like(x, memory_format=torch.contiguous_format)
        kind = torch.promote_types(x.dtype, torch.float32)
        totals = [torch.zeros(x.shape[-1], dtype=kind) for _ in numbers]
        for rows, given, target in zip(pieces(x), pieces(gradient), pieces(slope), strict=True):
            _backward_rows(rows, given, target, ctx.names, numbers, totals)
        _at_rest(gradient, ctx.names, numbers, totals)
        found = [
            total.sum_to_size(one.shape).to(one.dtype)
            for total, one in zip(totals, numbers, strict=True)
        ]
        return slope, None, *found


def _backward_rows(
    x: Tensor,
    gradient: Tensor,
    slope: Tensor,
    names: Sequence[str],
    numbers: Numbers,
    totals: Numbers,
) -> None:
    n = len(names)
    for at, name in enumerate(names):
        scale, shift = numbers[at].to(x.dtype), numbers[n + at].to(x.dtype)
        inner = apply_slope(gradient, torch.addcmul(shift, x, scale), name)
        if at:
            slope.addcmul_(inner, scale.expand_as(inner))
        else:
            torch.mul(inner, scale, out=slope)
        totals[n + at] += inner.sum(0, dtype=totals[at].dtype)
        totals[at] += inner.mul_(x).sum(0, dtype=totals[at].dtype)


def _at_rest(gradient: Tensor, names: Sequence[str], numbers: Numbers, totals: Numbers) -> None:
    """Subtract the terms at rest from the gradients of their shifts, the same for every row."""
    n, kind = len(names), totals[0].dtype
    summed = gradient.flatten(0, -2).sum(0, dtype=kind)
    for at in range(1, n):
        row = numbers[n + at].to(kind).expand_as(summed)
        totals[n + at] -= apply_slope(summed, row, names[at])


def _halves(numbers: Numbers) -> tuple[Numbers, Numbers]:
    """Return the scales and the shifts."""
    return numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]
