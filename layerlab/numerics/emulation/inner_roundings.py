"""What one operation rounds inside: numbers it is given, the square in a cube, running sums."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from layerlab.errors import UserError
from layerlab.numerics.formats.formats import AnyFormat
from layerlab.numerics.formats.round import sparing

Round = Callable[[Tensor], Tensor]
aten = torch.ops.aten
# Powers that torch's kernels make of the square: x^2 times x, and one over x^2.
CUBE, INVERSE_SQUARE = 3, -2
# What reads a number, or writes one, as a value of the tensor's own dtype.
READING = frozenset(
    """clamp clamp_ constant_pad_nd fill fill_ fmod fmod_ full_like masked_fill masked_fill_
    new_full pow pow_ remainder remainder_""".split()
)


def is_number(value: Any) -> bool:
    """Return whether an argument is a number, and neither a tensor nor a choice."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def rounds_square(func: Any, args: Sequence[Any]) -> bool:
    """Return whether torch's kernel for a power rounds the square before it goes on.

    Those for float16 on a CPU take any power at once. Written down in torch's
    `native/cpu/PowKernel.cpp` and `native/cuda/PowKernel.cu`.
    """
    if func._opname not in ("pow", "pow_") or not is_number(args[1]):
        return False
    plain = args[0].dtype == torch.float16 and args[0].device.type == "cpu"
    return args[1] in (CUBE, INVERSE_SQUARE) and not plain


def raise_by_square(
    func: Any, args: Sequence[Any], options: Mapping[str, Any], run: Callable[..., Any]
) -> Any:
    """Compute a power as its kernel does, in the two operations that each round.

    Args:
        func: the power, also in place or into another tensor.
        run: computes and rounds one operation.
    """
    base, exponent = args
    out = base if func._opname == "pow_" else options.get("out")
    square = run(aten.mul.Tensor, base, base)
    given = (square, base) if exponent == CUBE else (square,)
    if out is not None:
        return run(aten.mul.out if exponent == CUBE else aten.reciprocal.out, *given, out=out)
    return run(aten.mul.Tensor if exponent == CUBE else aten.reciprocal.default, *given)


@lru_cache(maxsize=256)
def narrow(number: float, format: AnyFormat) -> float:
    """Return a number as a tensor of the format holds it; a mask stays what it is."""
    return float(sparing(format, "nearest", None)(torch.tensor([number], dtype=torch.float64)))


def multiply_groups(left: Tensor, right: Tensor, ends: Tensor | None) -> Tensor:
    """Multiply by group, as mixtures of experts do.

    PyTorch's own operation knows no float64.

    Args:
        left: a matrix whose rows, or columns, are sorted by group, or one matrix for each group.
        right: one matrix for each group, or a matrix whose rows, or columns, are sorted by group.
        ends: number of the row or column after the last of each group.
    """
    if ends is None:
        return torch.bmm(left, right)
    bounds = [0, *ends.tolist()]
    spans = [slice(start, end) for start, end in pairwise(bounds)]
    if left.dim() == 2 and right.dim() == 2:
        return torch.stack([left[:, span] @ right[span] for span in spans])
    if left.dim() == 2:
        rows = [left[span] @ matrix for span, matrix in zip(spans, right, strict=True)]
        return torch.cat([*rows, left.new_zeros(len(left) - bounds[-1], right.shape[-1])])
    columns = [matrix @ right[:, span] for span, matrix in zip(spans, left, strict=True)]
    rest = right.new_zeros(left.shape[-2], right.shape[-1] - bounds[-1])
    return torch.cat([*columns, rest], dim=-1)


def accumulate(
    name: str, factors: Sequence[Any], options: Mapping[str, Any], terms: int, round: Round
) -> Tensor:
    """Return a matrix product with its running sum rounded after every so many terms.

    With one term a product is rounded before it is added, as in the scalar model
    fl(x op y) = (x op y)(1 + delta); with more the terms of a block are summed exactly. What
    `alpha` and `beta` scale is added last and rounded once.

    Source: budzinskiy25, Model 4.1; the blockwise form Own.

    Raises:
        UserError: an operation with no sum that could be split.
    """
    addend: Tensor | None = None
    alpha, beta = options.get("alpha", 1), options.get("beta", 1)
    if name in ("addmm", "baddbmm"):
        addend, left, right = factors[:3]
        if set(options) - {"alpha", "beta"}:
            raise UserError(f"accumulate= cannot follow {name} with {options}; leave it out")
    elif name in ("mm", "bmm"):
        left, right = factors[:2]
    else:
        raise UserError(
            f"accumulate= cannot look into {name}; leave accumulate out, or where= this place"
        )
    total = _strict(left, right, round) if terms == 1 else _blockwise(left, right, terms, round)
    if addend is None:
        return total
    # With beta = 0 the addend is not read, NaN or not.
    return round(alpha * total + beta * addend if beta else alpha * total)


def _strict(left: Tensor, right: Tensor, round: Round) -> Tensor:
    total = round(left[..., :, :1] * right[..., :1, :])
    for term in range(1, left.shape[-1]):
        product = round(left[..., :, term : term + 1] * right[..., term : term + 1, :])
        total = round(total + product)
    return total


def _blockwise(left: Tensor, right: Tensor, terms: int, round: Round) -> Tensor:
    blocks = zip(left.split(terms, dim=-1), right.split(terms, dim=-2), strict=True)
    total: Tensor | None = None
    for columns, rows in blocks:
        part = torch.matmul(columns, rows)
        total = round(part if total is None else total + part)
    assert total is not None
    return total
