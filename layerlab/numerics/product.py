"""Matrix products whose sums are rounded as they go on, for hardware that does not sum exactly."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from layerlab import UserError

Round = Callable[[Tensor], Tensor]


def accumulated(
    name: str, factors: Sequence[Any], options: Mapping[str, Any], terms: int, round: Round
) -> Tensor:
    """A matrix product with its running sum rounded after every so many terms.

    With one term a product is rounded before it is added, as in the scalar model
    fl(x op y) = (x op y)(1 + delta); with more the terms of a block are summed exactly.

    Source: rounding25, Section 4; the blockwise form Own.

    Raises:
        UserError: an operation with no sum that could be split.
    """
    addend: Tensor | None = None
    if name in ("addmm", "baddbmm"):
        addend, left, right = factors[:3]
        if options:
            raise UserError(f"accumulate= cannot follow {name} with {options}; leave it out")
    elif name in ("mm", "bmm"):
        left, right = factors[:2]
    else:
        raise UserError(
            f"accumulate= cannot look into {name}; leave accumulate out, or where= this place"
        )
    total = _strict(left, right, round) if terms == 1 else _blockwise(left, right, terms, round)
    return total if addend is None else round(total + addend)


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
