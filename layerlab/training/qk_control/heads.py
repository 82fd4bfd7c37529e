"""Finds the query and key weights of every head, to penalize, scale or wrap them in place.

Families keep them apart, fused, interleaved, transposed. `layerlab.measures` knows how to read them
all; here its own reading is asked where each row comes from: it reads matrices whose entries are
their own numbers.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from layerlab.errors import NotApplicable, UserError
from layerlab.observe.architecture.head_weights import project
from layerlab.observe.architecture.structure import AttentionPart, anatomy, text_config


@dataclass(frozen=True, kw_only=True)
class ProjectionRows:
    """The rows of one module's matrix that make the queries, or the keys, of a layer.

    Attributes:
        module: whose `weight` holds them.
        rows: their numbers, head by head; None for all of them in order.
        turned: whether the module keeps its matrix the other way round, as GPT-2 does.
        heads: that they are cut into.
    """

    module: nn.Module
    rows: Tensor | None
    turned: bool
    heads: int

    def weight(self) -> Tensor:
        """Return the matrix, head x head_width x width, with its gradient."""
        matrix: Tensor = self.module.weight  # type: ignore[assignment]
        return self.of(matrix).unflatten(0, (self.heads, -1))

    def of(self, matrix: Tensor) -> Tensor:
        """Return these rows of a module's matrix, transposed where it stores it transposed."""
        matrix = matrix.T if self.turned else matrix
        return matrix if self.rows is None else matrix[self.rows.to(matrix.device)]

    def scale(self, factors: Tensor) -> None:
        """Multiply every head's weights and biases, in place."""
        for name in ("weight", "bias"):
            value = getattr(self.module, name, None)
            if not isinstance(value, Tensor):
                continue
            axis = 1 if self.turned and value.dim() == 2 else 0
            all_rows = value.new_ones(value.shape[axis])
            each = factors.to(value).repeat_interleave(self._height(value.shape[axis]))
            rows = slice(None) if self.rows is None else self.rows.to(value.device)
            all_rows[rows] = each
            with torch.no_grad():
                value.mul_(all_rows if axis == value.dim() - 1 else all_rows[:, None])

    def _height(self, total: int) -> int:
        """Return how many rows one head has."""
        return (total if self.rows is None else len(self.rows)) // self.heads


@dataclass(frozen=True, kw_only=True)
class QKHead:
    """Queries and keys of one attention layer.

    Attributes:
        part: the attention module, as `anatomy` describes it.
        scaling: factor on q . k.
        normed: whether a norm stands on queries and keys.
    """

    part: AttentionPart
    query: ProjectionRows
    key: ProjectionRows
    scaling: float
    normed: bool

    @property
    def group(self) -> int:
        """The number of query heads that share one key head."""
        return self.query.heads // self.key.heads


def heads_of(model: Any) -> list[QKHead]:
    """Return queries and keys of every attention layer.

    Raises:
        UserError: there are none, or a layer's cannot be told apart.
    """
    name = type(model).__name__
    try:
        found = anatomy(model)
    except NotApplicable as error:
        raise UserError(_refuse(name, str(error))) from None
    if not found.attentions:
        raise UserError(_refuse(name, "it has no attention"))
    config = text_config(model)
    return [_head(name, part, found.blocks[part.block], config) for part in found.attentions]


def _refuse(name: str, reason: str) -> str:
    return (
        f"the control section needs the query and key weights of each head, and {name} shows none: "
        f"{reason}; leave the section out"
    )


def _head(name: str, part: AttentionPart, block: nn.Module, config: Any) -> QKHead:
    holders = [
        module
        for module in part.module.modules()
        if (weight := module._parameters.get("weight")) is not None and weight.dim() == 2
    ]
    with _number(holders):
        read = project(block, part, config=config)
    if read.query is None or read.key is None:
        reasons = [read.refused[one] for one in ("query", "key") if one in read.refused]
        raise UserError(_refuse(name, reasons[0] if reasons else "they were not found"))
    return QKHead(
        part=part,
        query=_rows(read.query, holders),
        key=_rows(read.key, holders),
        scaling=read.scaling,
        normed=read.query_norm is not None,
    )


@contextmanager
def _number(holders: Sequence[nn.Module]) -> Iterator[None]:
    """Fill all matrices with the numbers of their entries, to see how a module rearranges them."""
    before = [module._parameters["weight"] for module in holders]
    start = 0
    try:
        for module, weight in zip(holders, before, strict=True):
            assert weight is not None
            numbers = torch.arange(start, start + weight.numel(), dtype=torch.float64)
            module._parameters["weight"] = nn.Parameter(numbers.view(weight.shape), False)
            start += weight.numel()
        yield
    finally:
        for module, weight in zip(holders, before, strict=True):
            module._parameters["weight"] = weight


def _rows(numbers: Tensor, holders: Sequence[nn.Module]) -> ProjectionRows:
    """Return the matrix, and its rows, that entry numbers were read from."""
    first = numbers.flatten(0, 1)[:, 0].long()
    start = 0
    for module in holders:
        weight: Tensor = module.weight  # type: ignore[assignment]
        if start <= int(first[0]) < start + weight.numel():
            break
        start += weight.numel()
    turned = bool(numbers[0, 0, 1] - numbers[0, 0, 0] != 1)
    height = weight.shape[1] if turned else weight.shape[0]
    rows = first - start if turned else (first - start) // weight.shape[1]
    all_rows = torch.equal(rows, torch.arange(height))
    return ProjectionRows(
        module=module, rows=None if all_rows else rows, turned=turned, heads=numbers.shape[0]
    )
