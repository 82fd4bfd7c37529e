"""Softmax and norms, where one sum goes into every result: their errors are not independent."""

import math
from typing import Any

import torch
from torch import Tensor

from layerlab.numerics.prediction.error_state import Algebra, ErrorState, add_variances
from layerlab.numerics.prediction.linear_rules import reach
from layerlab.numerics.prediction.op_call import OpCall


def softmax(call: OpCall, algebra: Algebra) -> ErrorState:
    """Return the spread of weights p of scores s: dp_i = p_i (ds_i - sum_j p_j ds_j).

    A variance is at most p (1 - p).

    The bound takes the others at their highest and lowest: masked scores stay masked.

    Source: budzinskiy25, Lemma 3.13, for the derivative; the interval Own.
    """
    s, p, dim = call.value(0), call.results[0], call.value(1)
    spread = call.spread(0)
    through: ErrorState = None
    if spread is not None and algebra.power == 2:
        # What counts for nothing does so however little is known of it.
        spread = torch.where(p == 0, 0.0, spread)
        total = (p.square() * spread).nan_to_num(math.inf, math.inf).sum(dim, keepdim=True)
        through = p.square() * (spread * (1 - 2 * p) + total)
        through = torch.minimum(through.nan_to_num(math.inf, math.inf), p * (1 - p)).clamp_min(0)
    elif spread is not None:
        through = _simplex(s, p, spread, int(dim))
    if algebra.power == 2:
        return through
    below = s.amax(dim, keepdim=True) - s
    apart = torch.where(p > 0, below + (spread if spread is not None else 0.0), 0.0)
    apart = apart.nan_to_num(math.inf, math.inf)
    mean = (p * apart).nan_to_num(math.inf, math.inf).sum(dim, keepdim=True)
    terms = algebra.slack(s.shape[dim] + 16, lambda: reach(p, through))
    # A rounded difference to the highest score, in the exponents of numerator and sum.
    differences = algebra.slack(2, lambda: (p * (apart + mean)).nan_to_num(math.inf, math.inf))
    summed = add_variances(through, terms, differences)
    return torch.minimum(summed, torch.maximum(p, 1 - p) * 1.001)  # type: ignore[arg-type]


def _simplex(s: Tensor, p: Tensor, spread: Tensor, dim: int) -> Tensor:
    """Return the furthest that softmax can move from p when each score moves within its spread."""
    high, low = s + spread, s - spread
    fuzz = s.shape[dim] * 2.0**-51
    least, most = low.logsumexp(dim, keepdim=True), high.logsumexp(dim, keepdim=True)
    without_low = least + ((1 - (low - least).exp()) - fuzz).clamp_min(0).log()
    without_high = most + ((1 - (high - most).exp()).clamp_min(0) + fuzz).log()
    above = 1 / (1 + (without_low - high).exp())
    below = 1 / (1 + (without_high - low).exp())
    found = torch.maximum(above - p, p - below) + 2.0**-50
    return found.nan_to_num(nan=1.0).clamp(0.0, 1.0)


def log_softmax(call: OpCall, algebra: Algebra) -> ErrorState:
    """Return the spread of logarithms of weights, l = s - log sum exp s."""
    s, y, dim, spread = call.value(0), call.results[0], call.value(1), call.spread(0)
    through: ErrorState = None
    if spread is not None and algebra.power == 2:
        p = y.exp()
        total = (p.square() * spread).nan_to_num(math.inf, math.inf).sum(dim, keepdim=True)
        through = spread * (1 - 2 * p) + total
        through = through.nan_to_num(math.inf, math.inf).clamp_min(0)
    elif spread is not None:
        through = spread + _shift(s, spread, dim, keep=True)
    # One unit of the difference and of the logarithm, the rest inside the logarithm of a sum.
    inside = algebra.slack(s.shape[dim] + 16, lambda: torch.ones_like(s))
    size = algebra.slack(
        8,
        lambda: (
            s.abs()
            + s.amax(dim, keepdim=True).abs()
            + y.abs()
            + (0 if through is None else through)
        ),
    )
    return add_variances(through, inside, size)


def logsumexp(call: OpCall, algebra: Algebra) -> ErrorState:
    """Return the spread of log sum exp s, which moves no further than its terms."""
    s, y, dim, spread = call.value(0), call.results[0], call.value(1), call.spread(0)
    keep = bool(call.option(2, False))
    through: ErrorState = None
    if spread is not None and algebra.power == 2:
        through = s.softmax(dim[0] if isinstance(dim, (list, tuple)) else dim).square() * spread
        through = through.sum(dim, keepdim=keep)
    elif spread is not None:
        through = _shift(s, spread, dim, keep)
    inside = algebra.slack(s.numel() / max(y.numel(), 1) + 16, lambda: torch.ones_like(y))
    outer = algebra.slack(8, lambda: y.abs() + s.abs().amax(dim, keepdim=keep))
    return add_variances(through, inside, outer)


def _shift(s: Tensor, spread: Tensor, dim: Any, keep: bool) -> Tensor:
    middle = s.logsumexp(dim, keepdim=keep)
    above = (s + spread).logsumexp(dim, keepdim=keep) - middle
    below = middle - (s - spread).logsumexp(dim, keepdim=keep)
    return torch.maximum(above, below).abs().nan_to_num(math.inf, math.inf) + 2.0**-50


def layer_norm(call: OpCall, algebra: Algebra) -> list[ErrorState]:
    """Return the spread of LayerNorm y = g n + b, n = (x - mean x) / sqrt(var x + eps).

    dn = (1/sigma) (I - (1 1^T + n n^T)/d) dx. The bound: with centred errors c of size |c|, sigma
    moves by at most ||c|| / sqrt(d), and n_i by (|c_i| + |n_i| ||c|| / sqrt(d)) / sigma_lowest.

    Source: budzinskiy25, Lemma 3.8, for the derivative; the bound Own.
    """
    x, shape = call.value(0), call.value(1)
    dims = list(range(-len(shape), 0))
    epsilon = float(call.option(4, 1e-5))
    mean, centred = _centre(x, dims)
    sigma = (centred.square().mean(dims, keepdim=True) + epsilon).sqrt()
    n, spread = centred / sigma, call.spread(0)
    through: ErrorState = None
    if spread is not None and algebra.power == 2:
        d = math.prod(shape)
        sums = [(spread * n**k).sum(dims, keepdim=True) for k in range(3)]
        total = (sums[0] + 2 * n * sums[1] + n.square() * sums[2]) / d**2
        through = (spread * (1 - 2 * (1 + n.square()) / d) + total).clamp_min(0) / sigma.square()
    elif spread is not None:
        apart = spread + spread.mean(dims, keepdim=True)
        through = _divide(apart, n, sigma, epsilon, dims)
    flat = algebra.slack(2 * math.prod(shape) + 16, lambda: _moments(x, mean, n, sigma, dims))
    return [
        _affine(call, algebra, add_variances(through, flat), n),
        *_statistics(call),
    ]


def rms_norm(call: OpCall, algebra: Algebra) -> list[ErrorState]:
    """Return the spread of RMSNorm y = g n, n = x / sqrt(mean x^2 + eps): without centring.

    Source: budzinskiy25, Lemma 3.6, for the derivative; the bound Own.
    """
    x, shape = call.value(0), call.value(1)
    dims = list(range(-len(shape), 0))
    given = call.option(3, None)
    epsilon = float(torch.finfo(torch.float32).eps if given is None else given)
    sigma = (x.square().mean(dims, keepdim=True) + epsilon).sqrt()
    n, spread = x / sigma, call.spread(0)
    through: ErrorState = None
    if spread is not None and algebra.power == 2:
        d = math.prod(shape)
        total = n.square() * (spread * n.square()).sum(dims, keepdim=True) / d**2
        through = (spread * (1 - 2 * n.square() / d) + total).clamp_min(0) / sigma.square()
    elif spread is not None:
        through = _divide(spread, n, sigma, epsilon, dims)
    flat = algebra.slack(math.prod(shape) + 16, lambda: n.abs())
    return [
        _affine(call, algebra, add_variances(through, flat), n),
        *_statistics(call),
    ]


def _centre(x: Tensor, dims: list[int]) -> tuple[Tensor, Tensor]:
    mean = x.mean(dims, keepdim=True)
    return mean, x - mean


def _divide(apart: Tensor, n: Tensor, sigma: Tensor, epsilon: float, dims: list[int]) -> Tensor:
    moved = apart.square().mean(dims, keepdim=True).sqrt()
    lowest = (sigma - moved).clamp_min(math.sqrt(epsilon))
    return ((apart + n.abs() * moved) / lowest).nan_to_num(math.inf, math.inf)


def _moments(x: Tensor, mean: Tensor, n: Tensor, sigma: Tensor, dims: list[int]) -> Tensor:
    """Return the spread that a running mean and variance get in the arithmetic that holds them."""
    size = x.abs().mean(dims, keepdim=True)
    spoiled = x.square().mean(dims, keepdim=True).sqrt() / sigma
    return (x.abs() + size + mean.abs()) / sigma + n.abs() * (1 + spoiled)


def _affine(call: OpCall, algebra: Algebra, through: ErrorState, n: Tensor) -> ErrorState:
    gain = call.option(2, None)
    bias = call.spread(3) if call.name == "native_layer_norm" else None
    if gain is None:
        return add_variances(through, bias)
    parts = [None if through is None else through * algebra.size(gain), bias]
    own = call.spread(2)
    if own is not None:
        size = algebra.size(n)
        parts.append(own * (size if through is None else size + through))
    steps = algebra.slack(
        3, lambda: reach(call.results[0], add_variances(*parts)) + (n * gain).abs()
    )
    return add_variances(*parts, steps)


def _statistics(call: OpCall) -> list[ErrorState]:
    """Return unknown spreads for mean and 1/sigma, which only a backward pass asks for."""
    return [torch.full_like(result, math.inf) for result in call.results[1:]]


def vector_norm(call: OpCall, algebra: Algebra) -> ErrorState:
    """Return the spread of ||x||: a norm moves no further than the norm of the errors."""
    x, y, spread = call.value(0), call.results[0], call.spread(0)
    order, dims = float(call.option(1, 2)), call.option(2, None)
    keep = bool(call.option(3, False))
    axes = list(range(x.dim())) if dims is None else list(dims)
    through: ErrorState = None
    if spread is not None and algebra.power == 1:
        through = call.again(spread, *call.args[1:])
    elif spread is not None:
        long = torch.linalg.vector_norm(x, order, axes, keepdim=True)
        slope = (x.abs() / long) ** (order - 1)
        slope = torch.where(long > 0, slope, 1.0).nan_to_num(nan=0.0)
        through = (slope.square() * spread).sum(axes, keepdim=keep).reshape(y.shape)
    terms = x.numel() / max(y.numel(), 1) + 16
    return add_variances(through, algebra.slack(terms, lambda: reach(y, through)))


def variance(call: OpCall, algebra: Algebra) -> ErrorState | list[ErrorState]:
    """Return the spread of sum (x - mean)^2 / (n - c): d = 2 (x - mean) dx / (n - c)."""
    x, spread = call.value(0), call.spread(0)
    dims = call.option(1, None)
    axes = list(range(x.dim())) if dims is None else list(dims)
    count = math.prod(x.shape[dim] for dim in axes)
    correction = call.kwargs.get("correction", 1)
    rest = count - (1 if correction is None else correction)
    keep = bool(call.kwargs.get("keepdim", False))
    centred = _centre(x, axes)[1]
    y = call.results[0]
    through: ErrorState = None
    if spread is not None and algebra.power == 2:
        through = (centred.square() * spread).sum(axes, keepdim=keep) * 4 / rest**2
    elif spread is not None:
        apart = spread + spread.mean(axes, keepdim=True)
        twice = 2 * centred.abs() * apart + apart.square()
        through = twice.sum(axes, keepdim=keep) / rest
    spoiled = algebra.slack(
        2 * count + 16,
        lambda: y.abs() + (x.square().sum(axes, keepdim=keep) / rest * y.abs()).sqrt(),
    )
    found = add_variances(through, spoiled)
    if len(call.results) == 1:
        return found
    # `var_mean`: the second result is the mean.
    through = None
    if spread is not None:
        through = spread.sum(axes, keepdim=keep) / algebra.factor(count)
    size = algebra.slack(count + 1, lambda: x.abs().mean(axes, keepdim=keep))
    return [found, add_variances(through, size)]
