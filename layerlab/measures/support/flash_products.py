"""Products with an attention matrix that is never stored, as Triton kernels on a GPU.

A_ij = exp(s_ij - L_i), L_i the logarithm of what row i sums to, its sink included. L is computed
once, as in flash attention (dao22); every product then computes the scores of a tile again, uses
them for one vector or two, and forgets them. Products of bfloat16 and float16 are exact in the
accumulator; float32 is multiplied as IEEE 754 says. Sums are in float32.

What is proved runs in Triton's interpreter on a processor, and compiles for compute capability 9.0
to matrix instructions without spills; no GPU has timed it yet.
"""

from functools import cached_property
from typing import Any, TypeAlias

import torch
import triton
import triton.language as tl
from torch import Tensor

from layerlab.measures.support.products import Energies, Profile, RowStatistics, Vectors
from layerlab.observe.tracing.attention.record import AttentionRecord
from layerlab.observe.tracing.device_schedule import widen

# Rows, and keys, of a tile: of two bytes for tensor cores, of four for what registers hold.
TILES = {2: 64, 4: 32}
# Widths of a head beyond which a tile of its queries and keys spills out of the registers.
WIDEST = {2: 256, 4: 128}
LaunchGrid: TypeAlias = tuple[int, int]
LEAST = 16  # sides of a product of tiles


@triton.jit
def _scores(
    query, key, first_row, first_key, tokens, keys, width, window, scaling, softcap,
    causal: tl.constexpr, windowed: tl.constexpr, capped: tl.constexpr,
    block_m: tl.constexpr, block_n: tl.constexpr, block_d: tl.constexpr,
):  # fmt: skip
    """Return the scores of one tile, which of them are allowed, and all before they are capped.

    Those that are not are a large number: an infinity less itself would be NaN.
    """
    row, column = first_row + tl.arange(0, block_m), first_key + tl.arange(0, block_n)
    depth = tl.arange(0, block_d)
    held = depth < width
    q = tl.load(
        query + row[:, None] * width + depth[None, :],
        mask=(row < tokens)[:, None] & held[None, :],
        other=0.0,
    )
    k = tl.load(
        key + column[:, None] * width + depth[None, :],
        mask=(column < keys)[:, None] & held[None, :],
        other=0.0,
    )
    logits = tl.dot(q, tl.trans(k), input_precision="ieee").to(tl.float32) * scaling
    scores = logits
    if capped:
        half = logits / softcap
        scores = softcap * (1 - 2 / (tl.exp(2 * half) + 1))
    last = row + keys - tokens
    allowed = (row < tokens)[:, None] & (column < keys)[None, :]
    if causal:
        allowed = allowed & (column[None, :] <= last[:, None])
    if windowed:
        allowed = allowed & (column[None, :] > last[:, None] - window)
    return tl.where(allowed, scores, -1e30), allowed, logits


@triton.jit
def _reach(
    first_row, tokens, keys, window,
    causal: tl.constexpr, windowed: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr,
):  # fmt: skip
    """Return where the tiles of some rows begin and end that have a key which is allowed."""
    begin, end, last = 0, keys, first_row + keys - tokens
    if causal:
        end = tl.minimum(keys, last + block_m)
    if windowed:
        begin = tl.maximum(0, last - window + 1) // block_n * block_n
    return begin, end


@triton.jit
def _log_sums(
    query, key, sinks, out, tokens, keys, width, group, window, scaling, softcap,
    causal: tl.constexpr, windowed: tl.constexpr, capped: tl.constexpr, sunk: tl.constexpr,
    block_m: tl.constexpr, block_n: tl.constexpr, block_d: tl.constexpr,
):  # fmt: skip
    """Write L_i = log(sum_j exp(s_ij) + exp(sink)) of some rows of one head."""
    head, first_row = tl.program_id(1), tl.program_id(0) * block_m
    query += head.to(tl.int64) * tokens * width
    key += (head // group).to(tl.int64) * keys * width
    row = first_row + tl.arange(0, block_m)
    largest = tl.full([block_m], -1e30, tl.float32)
    total = tl.zeros([block_m], tl.float32)
    begin, end = _reach(first_row, tokens, keys, window, causal, windowed, block_m, block_n)
    for first_key in range(begin, end, block_n):
        scores, allowed, _ = _scores(
            query, key, first_row, first_key, tokens, keys, width, window, scaling, softcap,
            causal, windowed, capped, block_m, block_n, block_d,
        )  # fmt: skip
        above = tl.maximum(largest, tl.max(scores, 1))
        part = tl.sum(tl.where(allowed, tl.exp(scores - above[:, None]), 0.0), 1)
        total = total * tl.exp(largest - above) + part
        largest = above
    if sunk:
        sink = tl.load(sinks + head)
        above = tl.maximum(largest, sink)
        total = total * tl.exp(largest - above) + tl.exp(sink - above)
        largest = above
    total = tl.where(row < tokens, total, 1.0)
    tl.store(out + head * tokens + row, largest + tl.log(total), mask=row < tokens)


@triton.jit
def _row_statistics(
    query, key, sums, out, tokens, keys, width, group, window, scaling, softcap,
    causal: tl.constexpr, windowed: tl.constexpr, capped: tl.constexpr,
    block_m: tl.constexpr, block_n: tl.constexpr, block_d: tl.constexpr,
):  # fmt: skip
    """Write the entropy, the spread of scores, the largest and the smallest logit of some rows.

    `sums` leave a sink out: the entropy is that of what goes to keys.
    Squares about the mean are merged tile by tile: they do not cancel.
    """
    head, first_row = tl.program_id(1), tl.program_id(0) * block_m
    query += head.to(tl.int64) * tokens * width
    key += (head // group).to(tl.int64) * keys * width
    out += head * 4 * tokens
    row = first_row + tl.arange(0, block_m)
    logs = tl.load(sums + head * tokens + row, mask=row < tokens, other=0.0)
    entropy = tl.zeros([block_m], tl.float32)
    count = tl.zeros([block_m], tl.float32)
    mean = tl.zeros([block_m], tl.float32)
    squares = tl.zeros([block_m], tl.float32)
    high = tl.full([block_m], -1e30, tl.float32)
    low = tl.full([block_m], 1e30, tl.float32)
    begin, end = _reach(first_row, tokens, keys, window, causal, windowed, block_m, block_n)
    for first_key in range(begin, end, block_n):
        scores, allowed, logits = _scores(
            query, key, first_row, first_key, tokens, keys, width, window, scaling, softcap,
            causal, windowed, capped, block_m, block_n, block_d,
        )  # fmt: skip
        surprise = logs[:, None] - scores
        entropy += tl.sum(tl.where(allowed, tl.exp(-surprise) * surprise, 0.0), 1)
        own = tl.sum(tl.where(allowed, 1.0, 0.0), 1)
        total = tl.maximum(count + own, 1.0)
        centre = tl.sum(tl.where(allowed, scores, 0.0), 1) / tl.maximum(own, 1.0)
        off = tl.where(allowed, scores - centre[:, None], 0.0)
        apart = centre - mean
        squares += tl.sum(off * off, 1) + apart * apart * count * own / total
        mean += apart * own / total
        count += own
        high = tl.maximum(high, tl.max(tl.where(allowed, logits, -1e30), 1))
        low = tl.minimum(low, tl.min(tl.where(allowed, logits, 1e30), 1))
    tl.store(out + row, entropy, mask=row < tokens)
    tl.store(out + tokens + row, tl.sqrt(squares), mask=row < tokens)
    tl.store(out + 2 * tokens + row, high, mask=row < tokens)
    tl.store(out + 3 * tokens + row, low, mask=row < tokens)


@triton.jit
def _forward(
    query, key, sums, vectors, out, tokens, keys, width, group, window, scaling, softcap,
    causal: tl.constexpr, windowed: tl.constexpr, capped: tl.constexpr, two: tl.constexpr,
    block_m: tl.constexpr, block_n: tl.constexpr, block_d: tl.constexpr,
):  # fmt: skip
    """Write A x of some rows of one head, for one x or two."""
    head, first_row = tl.program_id(1), tl.program_id(0) * block_m
    query += head.to(tl.int64) * tokens * width
    key += (head // group).to(tl.int64) * keys * width
    vectors += head * (1 + two) * keys
    out += head * (1 + two) * tokens
    row = first_row + tl.arange(0, block_m)
    logs = tl.load(sums + head * tokens + row, mask=row < tokens, other=0.0)
    first = tl.zeros([block_m], tl.float32)
    second = tl.zeros([block_m], tl.float32)
    begin, end = _reach(first_row, tokens, keys, window, causal, windowed, block_m, block_n)
    for first_key in range(begin, end, block_n):
        scores, allowed, _ = _scores(
            query, key, first_row, first_key, tokens, keys, width, window, scaling, softcap,
            causal, windowed, capped, block_m, block_n, block_d,
        )  # fmt: skip
        weights = tl.where(allowed, tl.exp(scores - logs[:, None]), 0.0)
        column = first_key + tl.arange(0, block_n)
        x = tl.load(vectors + column, mask=column < keys, other=0.0)
        first += tl.sum(weights * x[None, :], 1)
        if two:
            x = tl.load(vectors + keys + column, mask=column < keys, other=0.0)
            second += tl.sum(weights * x[None, :], 1)
    tl.store(out + row, first, mask=row < tokens)
    if two:
        tl.store(out + tokens + row, second, mask=row < tokens)


@triton.jit
def _backward(
    query, key, sums, images, out, tokens, keys, width, group, window, scaling, softcap,
    causal: tl.constexpr, windowed: tl.constexpr, capped: tl.constexpr, two: tl.constexpr,
    entries_squared: tl.constexpr,
    block_m: tl.constexpr, block_n: tl.constexpr, block_d: tl.constexpr,
):  # fmt: skip
    """Write A^T y of some keys of one head, for one y or two, with A or its entries squared."""
    head, first_key = tl.program_id(1), tl.program_id(0) * block_n
    query += head.to(tl.int64) * tokens * width
    key += (head // group).to(tl.int64) * keys * width
    images += head * (1 + two) * tokens
    out += head * (1 + two) * keys
    column = first_key + tl.arange(0, block_n)
    first = tl.zeros([block_n], tl.float32)
    second = tl.zeros([block_n], tl.float32)
    begin, end = 0, tokens
    if causal:
        begin = tl.maximum(0, (first_key - keys + tokens) // block_m * block_m)
    if windowed:
        end = tl.minimum(tokens, first_key + block_n - 1 + window + tokens - keys)
    for first_row in range(begin, end, block_m):
        scores, allowed, _ = _scores(
            query, key, first_row, first_key, tokens, keys, width, window, scaling, softcap,
            causal, windowed, capped, block_m, block_n, block_d,
        )  # fmt: skip
        row = first_row + tl.arange(0, block_m)
        logs = tl.load(sums + head * tokens + row, mask=row < tokens, other=0.0)
        weights = tl.where(allowed, tl.exp(scores - logs[:, None]), 0.0)
        if entries_squared:
            weights = weights * weights
        y = tl.load(images + row, mask=row < tokens, other=0.0)
        first += tl.sum(weights * y[:, None], 0)
        if two:
            y = tl.load(images + tokens + row, mask=row < tokens, other=0.0)
            second += tl.sum(weights * y[:, None], 0)
    tl.store(out + column, first, mask=column < keys)
    if two:
        tl.store(out + keys + column, second, mask=column < keys)


class FlashProducts:
    """The attention matrices of some heads, known by their products."""

    def __init__(self, attended: AttentionRecord) -> None:
        assert attended.query is not None and attended.key is not None
        self._heads, self._tokens, self._keys = attended.heads, attended.tokens, attended.keys
        self._query = attended.query.contiguous()
        self._key = attended.key.contiguous()
        self._sinks = attended.sinks
        self._shape = (
            *(self._tokens, self._keys, self._query.shape[2], self._heads // len(self._key)),
            *(attended.window or 0, attended.scaling, attended.softcap or 1.0),
        )
        self._tile = TILES[self._query.element_size()]
        self._kind: dict[str, Any] = {
            "causal": attended.causal,
            "windowed": attended.window is not None,
            "capped": attended.softcap is not None,
            "block_m": self._tile,
            "block_n": self._tile,
            "block_d": max(LEAST, triton.next_power_of_2(self._query.shape[2])),
        }
        self._sums = self._sum_up(self._sinks)

    def try_kernels(self) -> None:
        """Compile what products need, on one tile of one head, so that what fails does so here."""
        for count in (1, 2):
            vectors = self._sums.new_zeros(self._heads, count, self._keys)
            images = self._sums.new_zeros(self._heads, count, self._tokens)
            self._forward(vectors, grid=(1, 1))
            self._backward(images, grid=(1, 1))
        self._backward(images[:, :1].contiguous(), squared=True, grid=(1, 1))
        self._of_rows(grid=(1, 1))

    def statistics(self) -> RowStatistics:
        """Return what can be said of each row, in one pass over its scores, and of each column."""
        entropy, spread, high, low = self._of_rows().unbind(1)
        row = torch.arange(self._tokens, device=self._query.device) + self._keys - self._tokens
        window = self._shape[4] if self._kind["windowed"] else self._keys + self._tokens
        first = (row - window + 1).clamp_min(0)
        counts = (row + 1 if self._kind["causal"] else self._keys) - first
        return RowStatistics(
            received=self._column_sums,
            counts=counts.float().expand(self._heads, -1),
            entropy=entropy,
            spread=spread,
            high=high,
            low=low,
        )

    def _sum_up(self, sinks: Tensor | None) -> Tensor:
        """Return the logarithm of what each row sums to."""
        out = self._query.new_empty(self._heads, self._tokens, dtype=torch.float32)
        given = out if sinks is None else sinks.float()
        grid = self._all(self._tokens)
        self._launch(_log_sums, grid, given, out, sunk=sinks is not None)
        return out

    @cached_property
    def _key_sums(self) -> Tensor:
        return self._sums if self._sinks is None else self._sum_up(None)

    @cached_property
    def _column_sums(self) -> Tensor:
        return self._backward(self._sums.new_ones(self._heads, 1, self._tokens))[:, 0]

    def _of_rows(self, grid: LaunchGrid | None = None) -> Tensor:
        out = self._sums.new_empty(self._heads, 4, self._tokens)
        grid = grid or self._all(self._tokens)
        # Narrower tiles: with as many keys as elsewhere, registers do not hold them.
        self._launch(_row_statistics, grid, self._key_sums, out, block_n=self._tile // 2)
        return out

    def profile(self) -> Profile:
        """Return the column sums, column norms and row sums."""
        rows = self._forward(self._sums.new_ones(self._heads, 1, self._keys))[:, 0]
        ones = self._sums.new_ones(self._heads, 1, self._tokens)
        return Profile(
            tokens=self._tokens,
            depth=(
                self._tile + triton.cdiv(self._keys, self._tile),
                self._tile + triton.cdiv(self._tokens, self._tile),
            ),
            column_sums=self._column_sums,
            column_norms=self._backward(ones, squared=True)[:, 0].sqrt(),
            row_sum_min=rows.amin(1),
            row_norm=widen(rows).norm(dim=1) / self._keys**0.5,
        )

    def gram(self, vectors: Vectors, shift: Energies) -> tuple[Vectors, Energies, Energies]:
        """Return A^T y, ||y||^2 and sum(y) with y = A x - shift, for one x or two."""
        assert vectors.shape[1] in (1, 2), "the kernels keep one or two vectors"
        image = self._forward(vectors.contiguous()) - shift.float()[..., None]
        wide = widen(image)
        return self._backward(image.contiguous()), wide.square().sum(-1), wide.sum(-1)

    def _forward(self, vectors: Tensor, grid: LaunchGrid | None = None) -> Tensor:
        count = vectors.shape[1]
        out = vectors.new_empty(self._heads, count, self._tokens)
        grid = grid or self._all(self._tokens)
        self._launch(_forward, grid, self._sums, vectors, out, two=count == 2)
        return out

    def _backward(
        self, images: Tensor, *, squared: bool = False, grid: LaunchGrid | None = None
    ) -> Tensor:
        count = images.shape[1]
        out = images.new_empty(self._heads, count, self._keys)
        grid = grid or self._all(self._keys)
        self._launch(
            *(_backward, grid, self._sums, images, out), two=count == 2, entries_squared=squared
        )
        return out

    def _all(self, length: int) -> LaunchGrid:
        """Return the programs for all tiles along a length, of all heads."""
        return triton.cdiv(length, self._tile), self._heads

    def _launch(self, kernel: Any, grid: LaunchGrid, *tensors: Tensor, **kind: int) -> None:
        """Run a kernel on the device of the query, whichever is the current one."""
        with torch.cuda.device_of(self._query):
            kernel[grid](self._query, self._key, *tensors, *self._shape, **{**self._kind, **kind})
