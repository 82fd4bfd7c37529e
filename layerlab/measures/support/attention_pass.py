"""One pass over the tiles of a layer's attention for all measures of its heads.

The scores and the softmax of a tile are computed once for all quantities: some look at its rows
while they are computed, others take products with the whole matrix. The heads of several records
that are alike, of sequences of equal length or of layers, are read as those of one.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from layerlab.measures.support.attention_products import products, watch_rows
from layerlab.measures.support.lanczos import Process, settle
from layerlab.measures.support.products import Profile
from layerlab.observe.tracing.attention.record import (
    AttentionRecord,
    group_alike,
    join,
)
from layerlab.observe.tracing.attention.tiles import (
    DENSE_TOKENS,
    SeenMasks,
    Watch,
    all_triangular,
    each_group,
    triangular,
)
from layerlab.observe.tracing.device_schedule import read_host
from layerlab.observe.tracing.records import Layer
from layerlab.shapes import HeadVector
from layerlab.system.hardware import with_threads

HeadVectors = Mapping[str, HeadVector]
# Gives what was found, once all rows were seen and all processes have settled.
End = Callable[[], HeadVectors]


@dataclass(frozen=True, kw_only=True)
class HeadQuantity:
    """A quantity of every head; those of one dtype are read together.

    Attributes:
        columns: the names of what it gives.
        dtype: of the matrix, of products with it, and of the scores that are looked at.
        watch: begins to look at the rows of some heads.
        solve: begins processes on some heads, whose matrix has the given profile.
    """

    columns: tuple[str, ...]
    dtype: torch.dtype = torch.float32
    watch: Callable[[AttentionRecord], tuple[Watch, End]] | None = None
    solve: Callable[[AttentionRecord, Profile], tuple[Sequence[Process], End]] | None = None


def read_heads(
    attended: AttentionRecord, quantities: Iterable[HeadQuantity], dense: int = DENSE_TOKENS
) -> dict[str, HeadVector]:
    """Return the columns of all quantities, of every head of a record.

    Args:
        attended: one layer on one sequence, or on several that were joined.
        quantities: what is read; what another one gives as well is read once.
        dense: up to how many tokens a matrix is kept; above, each pass computes it again.
    """
    return _read_all(triangular(attended), quantities, dense)


def read_joined(
    records: Sequence[AttentionRecord], quantities: Iterable[HeadQuantity]
) -> dict[str, HeadVector]:
    """Return the columns of all quantities, of every head of records that are alike, in order.

    Args:
        records: a group of `group_alike`, with the rules that their masks say (`all_triangular`).
        quantities: what is read.
    """
    return _read_all(records[0] if len(records) == 1 else join(records), quantities)


@with_threads(1)  # blocks are small: two threads were measured to be ten times slower
def _read_all(
    attended: AttentionRecord, quantities: Iterable[HeadQuantity], dense: int = DENSE_TOKENS
) -> dict[str, HeadVector]:
    chosen: dict[torch.dtype, list[HeadQuantity]] = {}
    for quantity in _distinct(quantities):
        chosen.setdefault(quantity.dtype, []).append(quantity)
    found: dict[str, HeadVector] = {}
    for dtype, together in chosen.items():
        read = partial(_read, quantities=together, dense=dense)
        parts = each_group(attended, dtype, read, dense)
        found |= {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    return found


def _distinct(quantities: Iterable[HeadQuantity]) -> list[HeadQuantity]:
    """Return the quantities but for those that others contain, the richest first."""
    found: list[HeadQuantity] = []
    for quantity in sorted(quantities, key=lambda one: -len(one.columns)):
        if not any(set(quantity.columns) <= set(other.columns) for other in found):
            found.append(quantity)
    return found


def _read(part: AttentionRecord, quantities: Sequence[HeadQuantity], dense: int) -> HeadVectors:
    dtype = quantities[0].dtype
    watching = [one.watch(part) for one in quantities if one.watch is not None]
    watches = [watch for watch, _ in watching]
    ends = [end for _, end in watching]
    begin = [one.solve for one in quantities if one.solve is not None]
    if begin:
        matrix = products(part, dtype, dense, watches)
        profile = matrix.profile()
        solving = [solve(part, profile) for solve in begin]
        settle(matrix, profile, [one for processes, _ in solving for one in processes])
        ends += [end for _, end in solving]
    else:
        watch_rows(part, dtype, dense, watches)
    return {name: values for end in ends for name, values in end().items()}


@dataclass(frozen=True, kw_only=True)
class SequenceHeads:
    """Readings of the heads of one layer on one sequence, on its device and on the host."""

    attended: AttentionRecord
    vectors: HeadVectors
    columns: Mapping[str, list[float]]


class HeadGroup:
    """The heads of one layer on sequences of equal length, read when one of them is first asked."""

    def __init__(
        self,
        records: Sequence[AttentionRecord],
        quantities: Sequence[HeadQuantity],
        seen: SeenMasks | None = None,
    ) -> None:
        self._records = records
        self._seen = seen
        self._quantities = quantities
        self._found: list[SequenceHeads] = []

    def read(self, number: int) -> SequenceHeads:
        """Return what was read of the sequence with this number in the group."""
        if not self._found:
            records = all_triangular(self._records, self._seen)
            vectors = _read_together(records, self._quantities)
            names = [(index, name) for index, one in enumerate(vectors) for name in one]
            host = read_host([vectors[index][name] for index, name in names])
            columns: list[dict[str, list[float]]] = [{} for _ in records]
            for (index, name), values in zip(names, host, strict=True):
                columns[index][name] = values.tolist()
            self._found = [
                SequenceHeads(attended=record, vectors=one, columns=read)
                for record, one, read in zip(records, vectors, columns, strict=True)
            ]
        return self._found[number]


def _read_together(
    records: Sequence[AttentionRecord], quantities: Sequence[HeadQuantity]
) -> list[HeadVectors]:
    found: list[HeadVectors] = [{}] * len(records)
    for numbers in group_alike(records):
        read = read_joined([records[number] for number in numbers], quantities)
        heads = records[numbers[0]].heads
        for place, number in enumerate(numbers):
            part = slice(place * heads, (place + 1) * heads)
            found[number] = {name: values[part] for name, values in read.items()}
    return found


def heads_of(layer: Layer, quantity: HeadQuantity) -> SequenceHeads:
    """Return what was read of a layer's heads for all measures; alone, if nobody gathered them."""
    assert layer.attention is not None
    group, number = layer.heads or (HeadGroup([layer.attention], [quantity]), 0)
    return group.read(number)
