"""The attention of some heads in blocks of rows, each with only the keys that its rows can reach.

Under a causal rule half of a square tile is zeros, under a sliding window nearly all of it: neither
is computed nor kept. What fits the memory budget is kept, the rest is computed again on every pass.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from layerlab.observe.tracing.attention.record import ALL, AttentionRecord
from layerlab.observe.tracing.device_schedule import PROCESSOR, device_schedule, read_host
from layerlab.system.hardware import is_out_of_memory

DENSE_TOKENS = 4096
FEWEST_ROWS = 128  # of a block on an accelerator
FEWEST_BLOCKS = 4  # of a matrix there: with one, half of it would be zeros that nobody needs
WIDEST = 8  # bytes of an entry while it is computed

T = TypeVar("T")


@dataclass(frozen=True)
class RowBlock:
    """Some rows of a matrix; every column outside of `keys` is zero there."""

    rows: slice
    keys: slice
    entries: Tensor


MaskKey = tuple[object, ...]
# What was read of masks, which are held so that no other takes their place in memory.
SeenMasks = dict[MaskKey | None, tuple[tuple[Tensor | None, ...], list[float]]]


@runtime_checkable
class Watch(Protocol):
    """Looks at rows once, block by block; or takes what was found of all of them."""

    def __call__(self, block: RowBlock, record: AttentionRecord, scores: Tensor) -> None:
        """Look at a block, with the record cut to its rows and keys, and its masked scores."""
        ...

    def take(self, found: Any) -> None: ...


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
    kept: tuple[RowBlock, ...] = ()
    watches: Sequence[Watch] = ()

    def __iter__(self) -> Iterator[RowBlock]:
        return iter(self.kept) if self.kept else self._compute()

    def _compute(self) -> Iterator[RowBlock]:
        watches, self.watches = self.watches, ()
        # The longest rows first: what the allocator gives back then holds every later block.
        for rows in reversed(list(blocks(self.attended.tokens, self.height))):
            # In no variable: a block would be held until the next one is computed.
            yield self._block(rows, watches)

    def _block(self, rows: slice, watches: Sequence[Watch]) -> RowBlock:
        keys, part = cut(self.attended, rows)
        scores = part.masked_scores(dtype=self.scores)
        block = RowBlock(rows, keys, part.normalize(scores).to(self.dtype))
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
        except RuntimeError as error:  # products and devices beside CUDA say it in other classes
            if count == 1 or not is_out_of_memory(error):
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
    """Return the record with the rules that its mask says: tiles skip what no row can reach.

    Causality is one, a sliding window another. A mask that says nothing else is dropped, because
    filling by a mask is the slow part of a tile, and kernels that store no scores take none.
    """
    return all_triangular([attended])[0]


def all_triangular(
    records: Sequence[AttentionRecord], seen: SeenMasks | None = None
) -> list[AttentionRecord]:
    """Return `triangular` of each, with one bias for all that have equal ones; the host waits once.

    Source: Own.

    Args:
        seen: what was read of masks before, and is added to: layers of a model share theirs.
    """
    first = records[0].bias
    seen = {} if seen is None else seen
    # A bias of every head is one layer's own, and too large to be kept for others.
    keys = [_mask_key(one, first) for one in records]
    unread = [
        number
        for number, key in enumerate(keys)
        if key is None or (key not in seen and keys.index(key) == number)
    ]
    asked = [one for one in records if one.bias is not None or _is_open(one)]
    found: dict[int, list[float]] = {}
    if unread and asked:
        evidence = [
            torch.stack([*_reach(records[number]), _is_alike(records[number], first)])
            for number in unread
        ]
        read = read_host(evidence)
        found = {number: one.tolist() for number, one in zip(unread, read, strict=True)}
    for number, flags in found.items():
        if (key := keys[number]) is not None:
            seen[key] = (records[number].bias, first), flags
    return [
        one if not asked else _with_rules(one, first, found.get(number) or seen[keys[number]][1])
        for number, one in enumerate(records)
    ]


def _mask_key(attended: AttentionRecord, first: Tensor | None) -> MaskKey | None:
    """Return what a mask is known by, as long as it is held; None for one that is not kept."""
    bias = attended.bias
    if bias is None or len(bias) > 1 or attended.scores is not None or first is None:
        return None
    places = [(one.data_ptr(), one.shape, one.stride(), one.dtype) for one in (bias, first)]
    return (*places, attended.causal, attended.window, attended.tokens, attended.keys)


def _is_alike(attended: AttentionRecord, first: Tensor | None) -> Tensor:
    """Return whether a record has that bias."""
    bias = attended.bias
    kinds = [one if one is None else (one.device, one.shape, one.dtype) for one in (bias, first)]
    if first is None or bias is None or kinds[0] != kinds[1]:
        return torch.zeros((), dtype=torch.bool, device=attended.device)
    return (bias == first).all()


def _with_rules(
    attended: AttentionRecord, first: Tensor | None, found: Sequence[float]
) -> AttentionRecord:
    looks_ahead, window, is_alike = found
    attended = replace(attended, bias=first) if is_alike else attended
    if looks_ahead or not _is_open(attended):
        return attended
    attended = replace(attended, causal=True)
    if not window or attended.bias is None:
        return attended
    return replace(attended, bias=None, window=int(window) if window < attended.keys else None)


def _is_open(attended: AttentionRecord) -> bool:
    """Return whether a record may be causal without saying so."""
    return not attended.causal and attended.keys >= attended.tokens


def _reach(attended: AttentionRecord) -> tuple[Tensor, ...]:
    """Return whether a row uses a later key, and how many each uses if these are the last ones.

    The number is 0 where some row uses others, or something is added. Where this is not asked,
    nothing is formed.
    """
    if not _is_open(attended):
        return torch.zeros(2, dtype=torch.int64, device=attended.device).unbind()
    column = torch.arange(attended.keys, device=attended.device)
    window = attended.allowed_keys(ALL, slice(-1, None)).sum(-1).max()
    ahead, bare = [], []
    for rows in blocks(attended.tokens, 256):
        row = column[attended.keys - attended.tokens :][rows, None]
        past = column <= row
        allowed = attended.allowed_keys(ALL, rows)
        ahead.append((allowed & ~past).any())
        last = past & (column > row - window)
        bare.append((allowed == last).all() & adds_nothing(attended, rows, allowed))
    return torch.stack(ahead).any().long(), torch.stack(bare).all() * window


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
        key=None if attended.key is None else attended.of_kv_heads(attended.key, heads)[:, keys],
        value=None,
        bias=None if attended.bias is None else _part(attended.bias, heads, rows, keys),
        sinks=None if attended.sinks is None else attended.sinks[heads],
        scores=None if attended.scores is None else attended.scores[heads, rows, keys],
    )


def adds_nothing(attended: AttentionRecord, rows: slice, allowed: Tensor) -> Tensor:
    """Return whether a mask is zero wherever it forbids nothing."""
    if attended.bias is None or attended.bias.dtype == torch.bool:
        return torch.ones((), dtype=torch.bool, device=attended.device)
    return ~((_part(attended.bias, ALL, rows, ALL) != 0) & allowed).any()


def _part(bias: Tensor, *parts: slice) -> Tensor:
    """Return a slice of a bias, some of whose axes may have length 1 because they are shared."""
    return bias[
        tuple(ALL if size == 1 else part for size, part in zip(bias.shape, parts, strict=True))
    ]
