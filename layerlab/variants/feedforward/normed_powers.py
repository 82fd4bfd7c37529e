"""The sum of normed powers of features, a few rows at a time.

With one scale s_i for every row and power, y = a_0 + sum over i of a_i s_i x^i is one polynomial in
x, whose coefficients differ from row to row: no power is kept for the backward pass.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from layerlab.blocks.operations.chunking import large, pieces
from layerlab.blocks.operations.derivative import again, redone
from layerlab.blocks.operations.recompute import recompute
from layerlab.shapes import Features


def normed_powers(x: Features, weight: Tensor, bias: Tensor, epsilon: float) -> Features:
    """Return the sum over i of a_i RMS(x^i) + a_0; i from 1 on.

    Source: zhuo24, section 2.

    Differs: powers and norms are taken in float32 where features are shorter.

    Args:
        weight: a_1, a_2, ...
        bias: a_0.
        epsilon: added to each mean square.
    """
    if not large(x):

        def plain(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            return _sum(x.to(_exact(x)), weight, bias, epsilon)[0].to(x.dtype)

        return recompute(plain, x, weight, bias)
    y: Features = _NormedPowers.apply(x, weight, bias, epsilon)[0]
    return y


def _sum(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return the sum, and the scale of each power."""
    square = x * x
    squares = [square]
    for _ in weight[1:]:
        squares.append(squares[-1] * square)
    means = torch.stack([one.mean(-1) for one in squares])
    scales = torch.rsqrt(means + epsilon)
    shape = (-1, *[1] * (scales.dim() - 1))
    return _horner(x, [bias, *(scales * weight.view(shape)).unsqueeze(-1)]), scales


def _horner(x: Tensor, factors: Sequence[Tensor]) -> Tensor:
    """Return the sum over i of c_i x^i, i from 0 on."""
    *others, last = factors
    if not others:
        return last
    y = x * last + others.pop()  # two calls: three operands of which two are columns are slow
    for factor in reversed(others):
        y = torch.addcmul(factor, y, x)
    return y


class _NormedPowers(torch.autograd.Function):
    """The same and its derivatives, over rows that stay in the cache.

    A second output has the scale of each power and row, for the backward pass alone.
    """

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
        kind = _exact(x)
        weight, bias = weight.to(kind), bias.to(kind)
        y = torch.empty_like(x, memory_format=torch.contiguous_format)
        scales = torch.empty(len(weight), x.shape[:-1].numel(), dtype=kind, device=x.device)
        parts = zip(pieces(x), pieces(y), scales.split(len(pieces(x)[0]), 1), strict=True)
        for rows, target, scale in parts:
            found, each = _sum(rows.to(kind), weight, bias, epsilon)
            target.copy_(found)
            scale.copy_(each)
        return y, scales

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, weight, bias, ctx.epsilon = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, weight, bias, output[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, scales = ctx.saved_tensors
        kind = _exact(x)
        if redone(gradient):

            def plain(*inputs: Tensor) -> Tensor:
                x, weight, bias = (one.to(kind) for one in inputs)
                return _sum(x, weight, bias, ctx.epsilon)[0].to(gradient.dtype)

            return *again(plain, (x, weight, bias), (gradient,)), None
        slope = torch.empty_like(x, memory_format=torch.contiguous_format)
        total, constant = torch.zeros_like(weight, dtype=kind), torch.zeros_like(bias, dtype=kind)
        exact = weight.to(kind).unsqueeze(-1)
        parts = zip(
            pieces(x),
            pieces(gradient),
            pieces(slope),
            scales.split(len(pieces(x)[0]), 1),
            strict=True,
        )
        for rows, given, target, scale in parts:
            rows, given = rows.to(kind), given.to(kind)
            found, shares = _backward_rows(rows, given, exact, scale)
            target.copy_(found)
            total += shares
            constant += given.sum()
        return slope, total.to(weight.dtype), constant.to(bias.dtype), None


def _backward_rows(
    x: Tensor, gradient: Tensor, weight: Tensor, scales: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the features and of the weights.

    With q_i = sum over features of g x^i, the scale s_i = (mean x^2i + epsilon)^-1/2 moves by
    -s_i^3 x^(2i - 1) i / n, so that the gradient of x is
    g sum over i of i a_i s_i x^(i - 1) - x sum over i of (i a_i s_i^3 q_i / n) x^(2i - 2).
    """
    product, along = gradient, []
    for _ in range(len(weight)):
        product = product * x
        along.append(product.sum(-1))
    sums = torch.stack(along)
    order = torch.arange(1, len(weight) + 1, dtype=x.dtype, device=x.device).unsqueeze(-1)
    straight = (order * weight * scales).unsqueeze(-1)
    turned = (order * weight * scales.pow(3) * sums / x.shape[-1]).unsqueeze(-1)
    slope = gradient * _horner(x, list(straight))
    slope.addcmul_(x, _horner(x * x, list(turned)).expand_as(x), value=-1)
    return slope, (scales * sums).sum(-1)


def _exact(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
