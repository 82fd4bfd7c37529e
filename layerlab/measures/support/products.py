"""A non-negative matrix for each head, known by its products with vectors."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from layerlab.observe.tracing.attention.tiles import RowBlock
from layerlab.observe.tracing.device_schedule import widen
from layerlab.shapes import Attentions, HeadVector

HeadKeys = Float[Tensor, "head key"]
HeadRows = Float[Tensor, "head row"]
Vectors = Float[Tensor, "head vector key"]
Energies = Float[Tensor, "head vector"]

CHUNK = 1024


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The results of one pass over a matrix: sums and norms of its columns, sums of its rows.

    Attributes:
        depth: the most additions that an entry of A x, and of A^T y, goes through in `gram`.
    """

    tokens: int
    depth: tuple[int, int]
    column_sums: HeadKeys
    column_norms: HeadKeys
    row_sum_min: HeadVector
    row_norm: HeadVector

    @property
    def reached(self) -> Tensor:
        """Return which columns are not zero; a NaN counts as reached, so that it is seen."""
        return self.column_sums != 0


@dataclass(frozen=True, kw_only=True)
class RowStatistics:
    """Statistics of rows of attention that need no look at their entries.

    Attributes:
        received: the sum of each column over all these rows.
        counts: T, the number of keys that a row may use.
        entropy: -sum_j p_ij log p_ij, with p_ij = A_ij / sum_j A_ij.
        spread: how far the scores lie from their mean, in the Euclidean norm.
        high: the largest logit, before softcap, of a key that is allowed.
        low: the smallest one.
    """

    received: HeadKeys
    counts: HeadRows
    entropy: HeadRows
    spread: HeadRows
    high: HeadRows
    low: HeadRows


@runtime_checkable
class Operator(Protocol):
    """Matrices that are asked for nothing but products."""

    def profile(self) -> Profile:
        """Return the column sums, column norms and row sums."""
        ...

    def gram(self, vectors: Vectors, shift: Energies) -> tuple[Vectors, Energies, Energies]:
        """Return A^T y, ||y||^2 and sum(y) with y = A x - shift, for several x.

        With shift = mean(A x) this is A^T J A x with J = I - e e^T, and e = (1, ..., 1) / sqrt(n).
        """
        ...


@dataclass(frozen=True)
class RowBlocks:
    """Matrices in blocks of rows."""

    blocks: Iterable[RowBlock]
    keys: int

    def profile(self) -> Profile:
        """Return the column sums, column norms and row sums, in one pass."""
        sums: list[Tensor] = []
        columns = squares = torch.empty(0)
        height = 0
        for block in self.blocks:
            entries = block.entries
            if not sums:
                columns = entries.new_zeros(entries.shape[0], self.keys)
                squares = torch.zeros_like(columns)
            sums.append(entries.sum(-1))
            height = max(height, entries.shape[1])
            columns[:, block.keys].add_(entries.sum(1))
            squares[:, block.keys].add_(entries.square().sum(1))
        rows = torch.cat(sums, 1)
        return Profile(
            tokens=rows.shape[1],
            depth=(min(self.keys, CHUNK) + -(-self.keys // CHUNK), height + len(sums)),
            column_sums=columns,
            column_norms=squares.sqrt(),
            row_sum_min=rows.amin(1),
            row_norm=widen(rows).norm(dim=1) / self.keys**0.5,
        )

    def gram(self, vectors: Vectors, shift: Energies) -> tuple[Vectors, Energies, Energies]:
        """Return A^T y, ||y||^2 and sum(y) with y = A x - shift, in one pass over the rows of A."""
        product = torch.zeros_like(vectors)
        less = shift.to(vectors.dtype)[..., None]
        images: list[Tensor] = []
        for block in self.blocks:
            images.append(_image(block, vectors[:, :, block.keys]) - less)
            # Not summed onto what is there: that would lengthen the sums that `depth` counts.
            product[:, :, block.keys].add_(torch.bmm(images[-1], block.entries))
        wide = widen(torch.cat(images, -1))
        return product, wide.square().sum(-1), wide.sum(-1)


def _image(block: RowBlock, vectors: Tensor) -> Tensor:
    """Return A x, summed in chunks: that keeps the worst rounding of long rows small."""
    across = block.entries.mT
    if vectors.shape[-1] <= CHUNK:
        return torch.bmm(vectors, across)
    first, *rest = map(torch.bmm, vectors.split(CHUNK, -1), across.split(CHUNK, -2))
    return sum(rest, start=first)


def dense(matrix: Attentions) -> RowBlocks:
    """Return a matrix as one block."""
    rows, keys = matrix.shape[1:]
    return RowBlocks((RowBlock(slice(0, rows), slice(0, keys), matrix),), keys)
