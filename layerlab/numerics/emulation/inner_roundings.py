"""Roundings inside one operation: its number arguments, the square in a cube, running sums."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from layerlab.errors import UserError
from layerlab.numerics.formats.formats import AnyFormat
from layerlab.numerics.formats.round import sparing

aten = torch.ops.aten
Round = Callable[[Tensor], Tensor]
Multiply = Callable[[Tensor, Tensor], Tensor]
Order = Literal["sequential", "tree", "split-k"]
CACHED = 2**18  # numbers
# What is made of sums of values, not of products.
ADDING = frozenset({"mean", "_softmax", "native_layer_norm"})
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


class Summation(NamedTuple):
    """Order in which the parts of a sum are added up.

    Attributes:
        order: one after another in an accumulator, which is rounded after each ("sequential");
            one after another as well, each stored and so rounded before ("split-k"); or stored
            and then added in pairs, pairs of pairs, and so on ("tree").
        size: terms in a part; of "split-k", the number of parts.
        round: what every sum goes through.
    """

    order: Order
    size: int
    round: Round


def multiply_groups(
    left: Tensor, right: Tensor, ends: Tensor | None, multiply: Multiply = torch.matmul
) -> Tensor:
    """Multiply by group, as mixtures of experts do.

    PyTorch's own operation knows no float64.

    Args:
        left: a matrix whose rows, or columns, are sorted by group, or one matrix for each group.
        right: one matrix for each group, or a matrix whose rows, or columns, are sorted by group.
        ends: number of the row or column after the last of each group.
        multiply: multiplies two matrices.
    """
    if ends is None:
        return multiply(left, right)
    bounds = [0, *ends.tolist()]
    spans = [slice(start, end) for start, end in pairwise(bounds)]
    if left.dim() == 2 and right.dim() == 2:
        return torch.stack([multiply(left[:, span], right[span]) for span in spans])
    if left.dim() == 2:
        rows = [multiply(left[span], one) for span, one in zip(spans, right, strict=True)]
        return torch.cat([*rows, left.new_zeros(len(left) - bounds[-1], right.shape[-1])])
    columns = [multiply(one, right[:, span]) for span, one in zip(spans, left, strict=True)]
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
    if name not in ("mm", "bmm", "addmm", "baddbmm"):
        raise UserError(
            f"accumulate= cannot look into {name}; leave accumulate out, or where= this place"
        )
    if set(options) - {"alpha", "beta"}:
        raise UserError(f"accumulate= cannot follow {name} with {options}; leave it out")
    own = Summation("sequential", terms, round)
    if terms == 1:
        own = Summation("split-k", factors[-1].shape[-2], round)
    multiply = partial(multiply_in_order, stages=[own])
    found = take_apart(name, factors, options, multiply)
    return round(found) if "add" in name else found


def take_apart(
    name: str, factors: Sequence[Any], options: Mapping[str, Any], multiply: Multiply
) -> Tensor:
    """Compute what torch makes of sums, by way of a product of two matrices.

    Args:
        name: of the operation, a product or one of `ADDING`.
        factors: its arguments.
        options: its other arguments, by name.
        multiply: multiplies two matrices.
    """
    if name in ADDING:
        return _add_values(name, factors, multiply)
    if name == "_grouped_mm":
        ends = options.get("offs", (*factors, None)[2])
        return multiply_groups(factors[0], factors[1], ends, multiply)
    if name == "linear":
        left, weight, addend = (*factors, options.get("bias"))[:3]
        total = multiply(left, weight.transpose(-2, -1))
        return total if addend is None else total + addend
    left, right = factors[-2:]
    if name.endswith("mv"):
        total = multiply(left, right[:, None])[:, 0]
    else:
        total = multiply(left, right)
    if "add" not in name:
        return total
    alpha, beta = options.get("alpha", 1), options.get("beta", 1)
    # With beta = 0 the addend is not read, NaN or not.
    return alpha * total + beta * factors[0] if beta else alpha * total


def _add_values(name: str, given: Sequence[Any], multiply: Multiply) -> Tensor:
    """Compute a mean, a softmax or a layer norm, whose sums are products with ones."""
    values, axes = given[:2]

    def add(terms: Tensor) -> Tensor:
        rows = terms.flatten(0, -2)
        return multiply(rows, rows.new_ones(rows.shape[-1], 1)).reshape(*terms.shape[:-1], 1)

    if name == "_softmax":
        turned = values.movedim(axes, -1)
        powers = (turned - turned.amax(-1, keepdim=True)).exp()
        return (powers / add(powers)).movedim(-1, axes)
    if name == "mean":
        kept = values.mean(axes, keepdim=bool(given[2:] and given[2]))
        turned = values.movedim(axes, tuple(range(-len(axes), 0))).flatten(-len(axes))
        return (add(turned) / turned.shape[-1]).reshape(kept.shape)
    turned = values.flatten(-len(axes))
    centred = turned - add(turned) / turned.shape[-1]
    square = add(centred.square()) / turned.shape[-1]
    weight, bias, small = given[2:]
    found = (centred * torch.rsqrt(square + small)).reshape(values.shape)
    found = found if weight is None else found * weight
    return found if bias is None else found + bias


def multiply_in_order(left: Tensor, right: Tensor, stages: Sequence[Summation]) -> Tensor:
    """Multiply two matrices, their sums cut into parts by the last stage, and these by the others.

    What no stage cuts is summed as torch does.

    Source: Own.
    """
    if not stages:
        return torch.matmul(left, right)
    *inner, (order, size, round) = stages
    terms = left.shape[-1]
    length = max(-(-terms // size), 1) if order == "split-k" else size
    pairs = zip(left.split(length, dim=-1), right.split(length, dim=-2), strict=True)
    sums = (multiply_in_order(*pair, inner) for pair in pairs)
    if order == "tree":
        return _add_in_pairs(map(round, sums), round)
    total = round(next(sums))
    for one in sums:
        total = round(total + (round(one) if order == "split-k" else one))
    return total


def multiply_by_rows(left: Tensor, right: Tensor, stages: Sequence[Summation]) -> Tensor:
    """Multiply as `multiply_in_order` does, so many rows at once that their sums stay cached."""
    columns = right.numel() // max(right.shape[-2], 1)
    rows = max(CACHED // max(columns, 1), 1)
    parts = [multiply_in_order(one, right, stages) for one in left.split(rows, dim=-2)]
    return torch.cat(parts, dim=-2)


def _add_in_pairs(sums: Iterable[Tensor], round: Round) -> Tensor:
    """Add neighbours, then sums of neighbours, and so on; as few as can be are held at once."""
    held: list[tuple[int, Tensor]] = []
    for one in sums:
        size = 1
        while held and held[-1][0] == size:
            one, size = round(held.pop()[1] + one), 2 * size
        held.append((size, one))
    while len(held) > 1:
        _, one = held.pop()
        size, before = held.pop()
        held.append((size, round(before + one)))
    return held[0][1]
