"""Matrix products whose sums are rounded as they go on, for hardware that does not sum exactly."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from layerlab.errors import UserError

Round = Callable[[Tensor], Tensor]


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
