"""Moves, sums, products and fractions: steps through which spreads go as the values do."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from layerlab.numerics.emulation.emulated_tensor import leaves
from layerlab.numerics.formats.formats import Format
from layerlab.numerics.prediction.error_state import Algebra, ErrorState, add_variances
from layerlab.numerics.prediction.op_call import OpCall, lacking


def move(call: OpCall, algebra: Algebra) -> ErrorState | list[ErrorState]:
    """Return the spreads of values that are moved, chosen or added up, as their values are."""
    if call.exact:
        return [None] * len(call.results)
    args = call.dense()
    for index in NUMBERS.get(call.name.rstrip("_"), ()):
        if index < len(args) and isinstance(args[index], (int, float)):
            args[index] = 0
    kwargs = {name: 0 if name == "value" else value for name, value in call.kwargs.items()}
    found = call.run(*args, **kwargs)
    return [part for part in leaves([found]) if part.dtype.is_floating_point]


# Arguments that are numbers put among values: nothing is uncertain about them.
NUMBERS: dict[str, tuple[int, ...]] = {
    "masked_fill": (2,),
    "fill": (1,),
    "constant_pad_nd": (2,),
    "scatter": (3,),
    "index_fill": (3,),
    "where": (1, 2),
}


def create(call: OpCall, algebra: Algebra) -> ErrorState | list[ErrorState]:
    """Return None for new numbers, which are exact."""
    return [None] * len(call.results)


def sum_terms(call: OpCall, algebra: Algebra) -> ErrorState:
    """Return the spread of a sum of terms."""
    through = None if call.exact else call.again(*call.dense())
    terms = call.value(0).numel() / max(call.results[0].numel(), 1)
    if call.name == "cumsum":
        terms = call.value(0).shape[call.value(1)] if call.value(0).dim() else 1
    return add_variances(
        through, algebra.slack(terms, lambda: call.again(call.value(0).abs(), *call.args[1:]))
    )


def average(call: OpCall, algebra: Algebra) -> ErrorState:
    """Return the spread of a mean: a sum of n-th parts."""
    terms = call.value(0).numel() / max(call.results[0].numel(), 1)
    spread = call.spread(0)
    if spread is not None:
        spread = call.again(spread, *call.args[1:]) / algebra.factor(terms) * terms
    absolute = algebra.slack(terms + 1, lambda: call.again(call.value(0).abs(), *call.args[1:]))
    return add_variances(spread, absolute)


def summand(call: OpCall, algebra: Algebra) -> ErrorState:
    """Return the spread of sums and differences a + alpha b, a - alpha b, b - alpha a."""
    first, second = algebra.factor(1.0), algebra.factor(call.kwargs.get("alpha", 1))
    if call.name == "rsub":
        alpha = call.option(2, call.kwargs.get("alpha", 1))
        first, second = algebra.factor(alpha), first
    left, right = call.spread(0), call.spread(1)
    if call.twins and left is not None:
        alpha = call.kwargs.get("alpha", 1)
        scale = 1 + alpha if call.name.startswith("add") else 1 - alpha
        through: ErrorState = left * algebra.factor(scale)
    else:
        through = add_variances(_times(left, first), _times(right, second))
    if through is not None:
        through = torch.broadcast_to(through, call.results[0].shape)
        # Whatever is added to an infinite mask, it stays.
        through = torch.where(call.results[0].isinf() & through.isfinite(), 0.0, through)
    return add_variances(through, algebra.slack(1, lambda: reach(call.results[0], through)))


def _times(spread: ErrorState, factor: float) -> ErrorState:
    return spread if spread is None or factor == 1.0 else spread * factor


def reach(result: Tensor, spread: ErrorState) -> Tensor:
    """Return how large a value may be."""
    size = torch.where(result.isinf(), 0.0, result.abs())
    return size if spread is None else size + spread


def product(call: OpCall, algebra: Algebra) -> ErrorState:
    """Return the spread of what is linear in each of two factors, and in an addend.

    |(x+e)(y+f) - xy| <= |e||y| + |x||f| + |e||f|, and the variance of a product of independents is
    the same sum with squares.
    """
    addend, left, right = FACTORS.get(call.name.rstrip("_"), (None, 0, 1))
    if call.twins and addend is None and call.spread(0) is not None and algebra.power == 2:
        return call.value(0).square() * 4 * call.spread(0)
    parts = []
    x, y = call.value(left), call.value(right)
    e, f = call.spread(left), call.spread(right)

    def of(a: Any, b: Any, c: ErrorState = None) -> Tensor:
        args = list(call.args)
        args[left], args[right] = a, b
        if addend is not None and isinstance(args[addend], Tensor):
            args[addend] = torch.zeros_like(args[addend]) if c is None else c
        kwargs = {
            name: algebra.factor(value) if name in ("alpha", "beta", "value") else value
            for name, value in call.kwargs.items()
        }
        return call.run(*args, **kwargs)

    big = _size(x, algebra)
    c = None if addend is None else call.spread(addend)
    # |x||f| and |e||f| together: one product less.
    if e is not None:
        parts.append(of(e, _size(y, algebra), c))
    if f is not None:
        parts.append(of(big if e is None else big + e, f, c if e is None else None))
    if c is not None and not parts:
        parts.append(of(_nothing(x), _nothing(y), c))
    through = add_variances(*parts)
    terms = _terms(call, left) + (addend is not None)

    def size() -> Tensor:
        extra = None if addend is None else call.value(addend)
        added = None if extra is None else _magnitude(extra)
        total = of(_magnitude(x), _magnitude(y), added)
        return total if through is None else total + through

    return add_variances(through, algebra.slack(terms, size))


# Where addend and factors stand, if not first and second without addend.
FACTORS: dict[str, tuple[int | None, int, int]] = {
    "addmm": (0, 1, 2),
    "baddbmm": (0, 1, 2),
    "addmv": (0, 1, 2),
    "addcmul": (0, 1, 2),
    "convolution": (2, 0, 1),
    "linear": (2, 0, 1),
}
ELEMENTWISE = frozenset({"mul", "mul_", "addcmul", "addcmul_"})


def _terms(call: OpCall, left: int) -> int:
    """Return how many products are summed in a result."""
    if call.name in ELEMENTWISE:
        return 1
    if call.name == "convolution":
        return int(call.value(1)[0].numel())
    return int(call.value(left).shape[-1])


def _size(x: Any, algebra: Algebra) -> Any:
    return algebra.size(x) if isinstance(x, Tensor) else algebra.factor(x)


def _magnitude(x: Any) -> Any:
    return x if isinstance(x, Tensor) and x.dtype == torch.bool else abs(x)


def _nothing(x: Any) -> Any:
    return torch.zeros_like(x) if isinstance(x, Tensor) else 0.0


def quotient(call: OpCall, algebra: Algebra) -> ErrorState:
    """Return the spread of x / y: |x^/y^ - x/y| <= (|e| + |x/y| |f|) / (|y| - |f|)."""
    if call.kwargs.get("rounding_mode") is not None:
        raise lacking(call.name)
    y, e, f = call.value(1), call.spread(0), call.spread(1)
    result = call.results[0]
    through: ErrorState = None
    if e is not None or f is not None:
        below = algebra.divisor(torch.as_tensor(y, dtype=result.dtype), f) ** algebra.power
        above = add_variances(e, None if f is None else algebra.size(result) * f)
        assert above is not None
        through = torch.where(above == 0, 0.0, above / below).nan_to_num(math.inf, math.inf)
    return add_variances(through, algebra.slack(1, lambda: reach(result, through)))


def reciprocal(call: OpCall, algebra: Algebra) -> ErrorState:
    """Return the spread of 1 / y."""
    f, result = call.spread(0), call.results[0]
    through: ErrorState = None
    if f is not None:
        below = algebra.divisor(call.value(0), f) ** algebra.power
        through = torch.where(f == 0, 0.0, algebra.size(result) * f / below)
        through = through.nan_to_num(math.inf, math.inf)
    return add_variances(through, algebra.slack(1, lambda: reach(result, through)))


def larger(call: OpCall, algebra: Algebra) -> ErrorState:
    """Return the spread of the larger or smaller of two."""
    left, right = call.dense()[:2]
    if algebra.power == 1:
        return torch.maximum(left, right)
    return torch.where(call.results[0] == call.value(0), left, right)


def highest(call: OpCall, algebra: Algebra) -> ErrorState | list[ErrorState]:
    """Return the spread of the largest, the smallest or the sorted values along an axis.

    However values are moved by at most b each, the k-th largest is moved by at most the largest b.
    """
    spread, x = call.spread(0), call.value(0)
    if spread is None:
        return [None] * len(call.results)
    result = call.results[0]
    if algebra.power == 1:
        return _widest(call, spread, result)
    found = call.again(x, *call.args[1:])
    if isinstance(found, tuple):
        dim = _axis(call)
        keep = found[1].dim() == x.dim()
        index = found[1] if keep else found[1].unsqueeze(dim)
        chosen = spread.gather(dim, index)
        return chosen if keep else chosen.squeeze(dim)
    dims, keep = _dims(call, x)
    kept = result if keep or not dims else _unsqueeze(result, dims)
    there = (x == kept).to(x.dtype)
    return ((spread * there).sum(dims, keepdim=keep) / there.sum(dims, keepdim=keep)).reshape(
        result.shape
    )


def _axis(call: OpCall) -> int:
    if call.name in ("max", "min"):
        return int(call.value(1))
    return int(call.option(2 if call.name == "topk" else 1, -1))


def _dims(call: OpCall, x: Tensor) -> tuple[list[int], bool]:
    dims = call.option(1, [])
    dims = [dims] if isinstance(dims, int) else list(dims)
    return dims or list(range(x.dim())), bool(call.option(2, False))


def _unsqueeze(result: Tensor, dims: Sequence[int]) -> Tensor:
    rank = result.dim() + len(dims)
    for dim in sorted(d % rank for d in dims):
        result = result.unsqueeze(dim)
    return result


def _widest(call: OpCall, spread: Tensor, result: Tensor) -> Tensor:
    if call.name in ("sort", "topk"):
        return spread.amax(_axis(call), keepdim=True).expand(result.shape).contiguous()
    dims, keep = _dims(call, spread)
    return spread.amax(dims, keepdim=keep).reshape(result.shape)


def accumulate(call: OpCall, algebra: Algebra, terms: int, format: Format, mode: str) -> ErrorState:
    """Return the spread of a matrix product with a running sum rounded every so many terms.

    With one term each product is rounded, too, before it is added.
    """
    addend, first, second = FACTORS.get(call.name, (None, 0, 1))
    left, right, e, f = (
        call.value(first),
        call.value(second),
        call.spread(first),
        call.spread(second),
    )
    total: Tensor | None = None
    spread: ErrorState = None
    for start in range(0, left.shape[-1], terms):
        part = slice(start, start + terms)
        row, column = left[..., part], right[..., part, :]
        states = (None if e is None else e[..., part], None if f is None else f[..., part, :])
        value = torch.matmul(row, column)
        own = product(OpCall("mm", torch.matmul, (row, column), states, {}, (value,)), algebra)
        if terms == 1:
            own = algebra.round(value, own, format, mode)
        total = value if total is None else total + value
        current = total
        spread = add_variances(spread, own, algebra.slack(1, lambda t=current: t.abs()))  # type: ignore[misc]
        spread = algebra.round(total, spread, format, mode)
    if addend is not None:
        result = call.results[0]
        spread = add_variances(spread, call.spread(addend))
        spread = add_variances(spread, algebra.slack(1, lambda: reach(result, spread)))
    return spread
