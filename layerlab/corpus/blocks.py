"""The blocks of one source in the order of its passes, of a text at hand or of one in shards."""

from functools import lru_cache
from hashlib import blake2b
from typing import Protocol

import numpy as np

from layerlab.corpus.shards import ShardReader
from layerlab.corpus.streams import KeptTokens, TokenStream
from layerlab.errors import UserError


class SourceBlocks(Protocol):
    """The blocks of a source: where each turn finds its own, and their tokens."""

    count: int

    def locate(self, turns: np.ndarray) -> np.ndarray:
        """Return the block of each turn of the source."""

    def read(self, blocks: np.ndarray) -> np.ndarray:
        """Return the tokens of blocks, each with the one before it."""


def open_blocks(stream: TokenStream, block: int, key: str) -> SourceBlocks:
    """Open the blocks of a source.

    Args:
        key: decides the order of each pass.

    Raises:
        UserError: it is shorter than one block.
    """
    if stream.shards is None:
        return WholeBlocks(stream, block, key)
    return ShardedBlocks(stream, stream.shards, block, key)


def count_blocks(stream: TokenStream, block: int) -> int:
    """Count the blocks of one pass over a stream; less than a block is left at the end.

    Raises:
        UserError: it is shorter than one block.
    """
    count = (len(stream.tokens) - 1) // block
    if count < 1:
        raise UserError(
            f"{stream.name} gives {len(stream.tokens) - 1} tokens to train on, fewer than one "
            f"block of {block}; give a longer text, or write a smaller block_size"
        )
    return count


def shuffle(count: int, key: str) -> np.ndarray:
    """Return an order of blocks, from random numbers that no numpy version changes."""
    digest = blake2b(key.encode(), digest_size=16).digest()
    drawn = np.random.Philox(key=int.from_bytes(digest)).random_raw(count)
    return np.argsort(drawn, kind="stable")


class WholeBlocks:
    """Blocks of a text whose tokens are all there."""

    def __init__(self, stream: TokenStream, block: int, key: str) -> None:
        """Count them."""
        self.tokens, self.block = stream.tokens, block
        self.count = count = count_blocks(stream, block)
        # A batch may end one pass over a source and begin the next.
        self._shuffled = lru_cache(2)(lambda number: shuffle(count, f"{key}/{number}"))

    def locate(self, turns: np.ndarray) -> np.ndarray:
        """Return the block of each turn of the source."""
        found = np.empty_like(turns)
        passes, rest = np.divmod(turns, self.count)
        for number in np.unique(passes).tolist():
            now = passes == number
            found[now] = self._shuffled(number)[rest[now]]
        return found

    def read(self, blocks: np.ndarray) -> np.ndarray:
        """Return the tokens of blocks, each with the one before it."""
        return take_blocks(self.tokens, blocks, self.block)


class ShardedBlocks:
    """Blocks of a text of which more is tokenized as it is read: each lies within one shard."""

    def __init__(self, stream: TokenStream, shards: ShardReader, block: int, key: str) -> None:
        """Count those of the first shard, which is there."""
        self.first, self.shards, self.block = stream.tokens, shards, block
        self.count = count_blocks(stream, block)
        # Of all blocks, where those of each shard begin, as far as that is known.
        self.starts = np.array([0, self.count])
        self.ended = False
        self._shuffled = lru_cache(8)(
            lambda number, shard, count: shuffle(count, f"{key}/{number}/{shard}")
        )

    def locate(self, turns: np.ndarray) -> np.ndarray:
        """Return the block of each turn of the source, after waiting for its shard."""
        if not len(turns):
            return turns
        while not self.ended and turns.max() >= self.starts[-1]:
            self._count_on()
        passes, rest = np.divmod(turns, self.starts[-1]) if self.ended else (0 * turns, turns)
        shards = np.searchsorted(self.starts, rest, side="right") - 1
        found = np.empty_like(turns)
        self.shards.ask(int(shards.max()))
        for number, shard in sorted(set(zip(passes.tolist(), shards.tolist(), strict=True))):
            now = (passes == number) & (shards == shard)
            start, end = self.starts[shard : shard + 2].tolist()
            found[now] = start + self._shuffled(number, shard, end - start)[rest[now] - start]
        return found

    def read(self, blocks: np.ndarray) -> np.ndarray:
        """Return the tokens of blocks, each with the one before it."""
        found = np.empty((len(blocks), self.block + 1), np.int64)
        shards = np.searchsorted(self.starts, blocks, side="right") - 1
        for shard in np.unique(shards).tolist():
            now = shards == shard
            tokens = self.shards.tokens(shard) if shard else self.first
            found[now] = take_blocks(tokens, blocks[now] - self.starts[shard], self.block)
        return found

    def _count_on(self) -> None:
        """Count the blocks of the next shard, or learn that there is none."""
        number = len(self.starts) - 1
        if self.shards.is_last(number - 1):
            self.ended = True
            return
        more = max(0, (self.shards.table(number)["tokens"] - 1) // self.block)
        self.starts = np.append(self.starts, self.starts[-1] + more)


def take_blocks(tokens: np.ndarray | KeptTokens, blocks: np.ndarray, block: int) -> np.ndarray:
    """Return the tokens of blocks that lie side by side, each with the one before it."""
    found: np.ndarray = tokens[blocks[:, None] * block + np.arange(block + 1)]
    return found
