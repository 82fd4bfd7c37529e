"""Packs conversations into blocks, each with positions from 0 on."""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from layerlab.adaptation.sft.encode import Example
from layerlab.corpus.batches import IGNORED, Rows


@dataclass(frozen=True)
class Collator:
    """Rows of tokens, labels and positions out of examples that share a row.

    What fills a row up is a document of its own, which nothing sees and nothing is learned from,
    so that neither a padding token nor a mask is needed.

    Attributes:
        filler: any token.
        packed: whether positions are written; without them a row holds one example.
    """

    filler: int
    packed: bool = True

    def __call__(self, rows: Sequence[Sequence[Example]]) -> dict[str, Rows]:
        """Return a batch, as long as its longest row."""
        longest = max(sum(len(one.ids) for one in row) for row in rows)
        size = (len(rows), max(longest, 2))
        ids, labels = np.full(size, self.filler, np.int64), np.full(size, IGNORED, np.int64)
        positions = np.empty(size, np.int64)
        for number, row in enumerate(rows):
            at = 0
            for one in row:
                part = slice(at, at + len(one.ids))
                ids[number, part] = one.ids
                labels[number, part] = np.where(one.answer, one.ids, IGNORED)
                positions[number, part] = np.arange(len(one.ids))
                at += len(one.ids)
            positions[number, at:] = np.arange(size[1] - at)
        found = {"input_ids": torch.from_numpy(ids), "labels": torch.from_numpy(labels)}
        return {**found, "position_ids": torch.from_numpy(positions)} if self.packed else found


def best_fit(lengths: Sequence[int], block: int) -> list[list[int]]:
    """Assign examples to blocks: each, the longest first, to the fullest block with room.

    Best-fit decreasing takes at most 11/9 of the fewest blocks possible, plus 4 (Johnson, 1974).

    Args:
        lengths: of the examples, none longer than a block.

    Returns:
        The numbers of the examples in each block.

    Example:
        >>> best_fit([3, 5, 2, 6], 8)
        [[3, 2], [1, 0]]
    """
    blocks: list[list[int]] = []
    room: list[tuple[int, int]] = []  # left in each block, in order
    for number in sorted(range(len(lengths)), key=lambda one: -lengths[one]):
        index = bisect_left(room, (lengths[number], -1))
        if index == len(room):
            left, chosen = block, len(blocks)
            blocks.append([])
        else:
            left, chosen = room.pop(index)
        blocks[chosen].append(number)
        insort(room, (left - lengths[number], chosen))
    return blocks
