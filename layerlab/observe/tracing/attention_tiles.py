"""The attention of some heads in blocks of rows, each with only the keys that its rows can reach.

Under a causal rule half of a square tile is zeros, under a sliding window nearly all of it: neither
is computed nor kept. What fits the memory budget is kept, the rest is computed again on every pass.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from layerlab.observe.tracing.attention_record import ALL, AttentionRecord
from layerlab.observe.tracing.device_schedule import PROCESSOR, device_schedule

DENSE_TOKENS = 4096
FEWEST_ROWS = 128  # of a block on an accelerator
FEWEST_BLOCKS = 4  # of a matrix there: with one, half of it would be zeros that nobody needs
WIDEST = 8  # bytes of an entry while it is computed

T = TypeVar("T")


@dataclass(frozen=True)
class Block:
    """Some rows of a matrix; every column outside of `keys` is zero there."""

    rows: slice
    keys: slice
    entries: Tensor


# Looks at some rows once: the block, the record cut to its rows and keys, and its masked scores.
Watch = Callable[[Block, AttentionRecord, Tensor], None]


@dataclass(kw_only=True)
class Tile:
    """Rows in blocks, either kept or computed on every pass.

    `scores` is what the softmax is computed in, `dtype` what its rows are stored in. `watches` look
    at the rows as they are computed for the first time.
    """

    attended: AttentionRecord
    dtype: torch.dtype
    scores: torch.dtype
    height: int
    kept: tuple[Block, ...] = ()
    watches: Sequence[Watch] = ()

    def __iter__(self) -> Iterator[Block]:
        return iter(self.kept) if self.kept else self._compute()

    def _compute(self) -> Iterator[Block]:
        watches, self.watches = self.watches, ()
        # The longest rows first: what the allocator gives back then holds every later block.
        for rows in reversed(list(blocks(self.attended.tokens, self.height))):
            # In no variable: a block would be held until the next one is computed.
            yield self._block(rows, watches)

    def _block(self, rows: slice, watches: Sequence[Watch]) -> Block:
        keys, part = cut(self.attended, rows)
        scores = part.masked(dtype=self.scores)
        block = Block(rows, keys, part.normalised(scores).to(self.dtype))
        for watch in watches:
            watch(block, part, scores.to(self.dtype))
        return block


def stream(attended: AttentionRecord, dtype: torch.dtype, watches: Sequence[Watch] = ()) -> Tile:
    """Return the attention matrices of a record, computed on every pass."""
    rows = height(attended)
    return Tile(attended=attended, dtype=dtype, scores=dtype, height=rows, watches=watches)


def tile(
    attended: AttentionRecord,
    dtype: torch.dtype,
    dense: int = DENSE_TOKENS,
    watches: Sequence[Watch] = (),
) -> Tile:
    """Return the attention matrices of a record, kept up to `dense` tokens and streamed above.

    A score of size s that is rounded to u s moves its probability by as much, relatively, however
    the matrix is used. Kept tiles have their softmax in float64, which is done once;
    streamed ones, done in every pass, stay with `dtype`.
    """
    streamed = stream(attended, dtype, watches)
    if attended.tokens > dense:
        return streamed
    fine = dtype if attended.device.type == "mps" else torch.float64
    return replace(streamed, kept=tuple(replace(streamed, scores=fine)), watches=())


def height(attended: AttentionRecord) -> int:
    """Return the number of rows of a block: few enough for the cache, enough for fast products."""
    heads, tokens, keys = attended.heads, attended.tokens, attended.keys
    schedule = device_schedule(attended.device)
    if schedule is PROCESSOR:
        return 128 if keys <= 1024 else max(32, min(256, 2**19 // keys))
    room = schedule.block_bytes // (WIDEST * heads * keys)
    return max(FEWEST_ROWS, min(room, -(-tokens // FEWEST_BLOCKS)))


def each_group(
    attended: AttentionRecord,
    dtype: torch.dtype,
    read: Callable[[AttentionRecord], T],
    dense: int = DENSE_TOKENS,
) -> list[T]:
    """Return what is read of all heads, as many at a time as the device holds.

    Where its memory is not enough, half as many are tried, down to one.
    """
    found: list[T] = []
    first, count = 0, _together(attended, dtype, dense)
    while first < attended.heads:
        _, part = cut(attended, heads=slice(first, first + count))
        try:
            found.append(read(part))
        except torch.OutOfMemoryError:
            if count == 1:
                raise
            count = -(-min(count, attended.heads) // 2)
            logging.getLogger("layerlab").warning(
                "the memory of %s is short: attention is read %d heads at a time",
                attended.device,
                count,
            )
            continue
        first += count
    return found


def _together(attended: AttentionRecord, dtype: torch.dtype, dense: int) -> int:
    """Return how many heads fit: whole, or one block of each where they are streamed."""
    schedule = device_schedule(attended.device)
    if attended.tokens <= dense:
        return max(1, schedule.tile_bytes // (attended.tokens * attended.keys * dtype.itemsize))
    _, one = cut(attended, heads=slice(1))
    rows = height(one) if schedule is PROCESSOR else FEWEST_ROWS
    return max(1, schedule.block_bytes // (WIDEST * rows * attended.keys))


def blocks(length: int, size: int) -> Iterator[slice]:
    """Return consecutive slices of at most `size`, covering `length`."""
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


def triangular(attended: AttentionRecord) -> AttentionRecord:
    """Return the record with `causal` set where its mask already says so: tiles then skip half.

    A mask that says nothing else is dropped, because filling by a mask is the slow part of a tile.
    """
    if attended.causal or attended.keys < attended.tokens:
        return attended
    column = torch.arange(attended.keys, device=attended.device)
    ahead, bare = [], []
    for rows in blocks(attended.tokens, 256):
        past = column <= column[attended.keys - attended.tokens :][rows, None]
        allowed = attended.allowed(ALL, rows)
        ahead.append((allowed & ~past).any())
        bare.append((allowed == past).all() & _adds_nothing(attended, rows, allowed))
    looks_ahead, is_bare = torch.stack([torch.stack(ahead).any(), torch.stack(bare).all()]).tolist()
    if looks_ahead:
        return attended
    is_bare = is_bare and attended.bias is not None and attended.window is None
    return replace(attended, causal=True, bias=None if is_bare else attended.bias)


def cut(
    attended: AttentionRecord, rows: slice = ALL, heads: slice = ALL
) -> tuple[slice, AttentionRecord]:
    """Return some heads and rows with only the keys that causality and the window let them reach.

    Returns:
        which keys they are, and a record without values whose rows are still the last ones.
    """
    start, stop, _ = rows.indices(attended.tokens)
    offset = attended.keys - attended.tokens
    first = 0 if attended.window is None else max(0, start + offset - attended.window + 1)
    keys = slice(first, max(first, stop + offset) if attended.causal else attended.keys)
    return keys, replace(
        attended,
        query=None if attended.query is None else attended.query[heads, rows],
        key=None if attended.key is None else _keys(attended, heads)[:, keys],
        value=None,
        bias=None if attended.bias is None else _part(attended.bias, heads, rows, keys),
        sinks=None if attended.sinks is None else attended.sinks[heads],
        scores=None if attended.scores is None else attended.scores[heads, rows, keys],
    )


def _adds_nothing(attended: AttentionRecord, rows: slice, allowed: Tensor) -> Tensor:
    """Return whether a mask is zero wherever it forbids nothing."""
    if attended.bias is None or attended.bias.dtype == torch.bool:
        return torch.ones((), dtype=torch.bool, device=attended.device)
    return ~((_part(attended.bias, ALL, rows, ALL) != 0) & allowed).any()


def _keys(attended: AttentionRecord, heads: slice) -> Tensor:
    assert attended.key is not None
    if attended.key.shape[0] == attended.heads:
        return attended.key[heads]
    return attended.key[[attended.kv_head(head) for head in range(attended.heads)[heads]]]


def _part(bias: Tensor, *parts: slice) -> Tensor:
    """Return a slice of a bias, some of whose axes may have length 1 because they are shared."""
    return bias[
        tuple(ALL if size == 1 else part for size, part in zip(bias.shape, parts, strict=True))
    ]
