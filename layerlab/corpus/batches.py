"""Batches of an update: blocks as a function of the seed and a number, nothing else."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from math import log

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from layerlab.corpus.blocks import open_blocks
from layerlab.corpus.corpus import Corpus
from layerlab.corpus.mixture import Mixture
from layerlab.corpus.streams import TokenStream
from layerlab.errors import UserError

IGNORED = -100
Rows = Int[Tensor, "batch token"]


@dataclass(frozen=True)
class Batch:
    """Rows of tokens: what a model reads, and what it is to predict.

    Attributes:
        inputs: tokens.
        targets: the token after each; -100 where there is none.
        positions: counted from the last separator; None where attention knows no documents.
    """

    inputs: Rows
    targets: Rows
    positions: Rows | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, rows: slice) -> "Batch":
        return self._each(lambda values: values[rows])

    def part(self, rank: int, parts: int) -> "Batch":
        """Return the rows of one of several processes, which together have all rows in order."""
        first, last = (len(self) * number // parts for number in (rank, rank + 1))
        return self[first:last]

    def to(self, device: torch.device | str) -> "Batch":
        """Return the same rows on a device."""
        return self._each(lambda values: values.to(device, non_blocking=True))

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        positions = None if self.positions is None else change(self.positions)
        return Batch(change(self.inputs), change(self.targets), positions)


class BatchOrder:
    """The endless order of the blocks of a corpus.

    Blocks of a source lie side by side in its tokens: each predicts `block` of them and reads the
    one before them too. A pass over a source takes each of its blocks once, in an order that the
    seed, the source and the number of the pass decide. Sources take turns by their weights. Of a
    text in shards the blocks of one shard are shuffled, and the shards come in their order.

    Attributes:
        blocks: of each source; of a text in shards, those of its first.
    """

    def __init__(self, corpus: Corpus, block: int, seed: int) -> None:
        """Count the blocks.

        Raises:
            UserError: a source is shorter than one block.
        """
        self.corpus, self.block, self.seed = corpus, block, seed
        self.sources = [
            open_blocks(stream, block, f"{seed}/{number}")
            for number, stream in enumerate(corpus.train)
        ]
        self.blocks = [source.count for source in self.sources]
        self.mixture = Mixture([stream.weight for stream in corpus.train])

    def batch(self, update: int, size: int) -> Batch:
        """Return the rows of an update, the same however they are then split."""
        return batch_of(self.rows(update * size, size), self.corpus)

    def rows(self, first: int, count: int) -> np.ndarray:
        """Return the tokens of blocks by their place in the order, each with the one before it."""
        found = np.empty((count, self.block + 1), np.int64)
        sources, blocks = self.places(np.arange(first, first + count))
        for number, source in enumerate(self.sources):
            mine = sources == number
            found[mine] = source.read(blocks[mine])
        return found

    def places(self, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the source, and the block of that source, at each place of the order."""
        sources, turns = self.mixture.turn(order)
        blocks = np.empty_like(turns)
        for number, source in enumerate(self.sources):
            mine = sources == number
            blocks[mine] = source.locate(turns[mine])
        return sources, blocks

    @cached_property
    def digest(self) -> str:
        """Return a hash of the first 64 blocks: equal in runs with the same text and order."""
        return blake2b(self.rows(0, 64).tobytes(), digest_size=16).hexdigest()


class EvalBlocks:
    """The blocks of held-out text: each of its tokens is predicted once.

    The last block of a source is filled up with separators, which nothing is asked of.

    Attributes:
        whole: whether these are all blocks that there are.
    """

    def __init__(self, corpus: Corpus, block: int, limit: int | None = None) -> None:
        """Choose the blocks: all, or `limit` of them at equal distances.

        Raises:
            UserError: there is nothing to predict.
        """
        self.corpus, self.block = corpus, block
        found = [
            (source, first)
            for source, stream in enumerate(corpus.validation)
            for first in range(0, len(stream.tokens) - 1, block)
        ]
        if not found:
            raise UserError(
                "the held-out text gives no token to predict; write a larger "
                "data.validation_fraction"
            )
        count = min(limit or len(found), len(found))
        self.chosen = [found[number * len(found) // count] for number in range(count)]
        self.whole = count == len(found)

    def __len__(self) -> int:
        return len(self.chosen)

    @cached_property
    def tokens(self) -> int:
        """Return the number of tokens that are predicted."""
        return sum(last - first for _, first, last in self._spans())

    @cached_property
    def bytes(self) -> int:
        """Return the bytes of the text that the predicted tokens stand for."""
        return sum(
            int(stream.ends[last] - stream.ends[first])
            for stream, first, last in self._spans()
            if stream.ends is not None
        )

    @cached_property
    def digest(self) -> str:
        """Return a hash of what is predicted: equal in two runs that are measured on the same."""
        content = blake2b(digest_size=16)
        for stream, first, last in self._spans():
            content.update(stream.tokens[first : last + 1].astype(np.int64).tobytes())
        return content.hexdigest()

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield all blocks in order, so many rows at a time."""
        spans = list(self._spans())
        for start in range(0, len(spans), size):
            part = spans[start : start + size]
            rows = np.full((len(part), self.block + 1), self.corpus.separator, np.int64)
            for row, (stream, first, last) in zip(rows, part, strict=True):
                row[: last - first + 1] = stream.tokens[first : last + 1]
            batch = batch_of(rows, self.corpus)
            # Inputs lie in the same memory, and are to stay tokens.
            batch = replace(batch, targets=batch.targets.clone())
            for target, (_, first, last) in zip(batch.targets, part, strict=True):
                target[last - first :] = IGNORED
            yield batch

    def _spans(self) -> Iterator[tuple[TokenStream, int, int]]:
        """Yield the token before the first that a block predicts, and the last one."""
        for source, first in self.chosen:
            stream = self.corpus.validation[source]
            yield stream, first, min(first + self.block, len(stream.tokens) - 1)


def batch_of(rows: np.ndarray, corpus: Corpus) -> Batch:
    """Return rows of tokens as a batch of what is read and what is predicted."""
    tokens = torch.from_numpy(rows)
    positions = None
    if corpus.documents:
        positions = torch.from_numpy(restart_positions(rows[:, :-1], corpus.separator))
    return Batch(tokens[:, :-1], tokens[:, 1:], positions)


def restart_positions(rows: np.ndarray, separator: int) -> np.ndarray:
    """Return positions that begin anew at each separator; a row's first token has position 0."""
    counted = np.arange(rows.shape[1])
    starts = np.maximum.accumulate(np.where(rows == separator, counted, 0), axis=1)
    return counted - starts


def bits_per_byte(nats: float, size: int) -> float:
    """Return the cost of a text in bits per byte, whatever its tokens: its nats over its bytes.

    Example:
        >>> bits_per_byte(8 * log(2), 1)
        8.0
    """
    return nats / (log(2) * size)
