"""Rounding with torch alone, on any device: the reference that the kernel equals bit for bit."""

from typing import Any

import torch
from torch import Tensor

from layerlab.numerics.formats.grid import Grid, Mode
from layerlab.numerics.formats.random_bits import generator_on

# Elements taken at once on a CPU: what rounding needs of them stays in the cache, and torch takes
# them with one thread, which waits for no other.
CHUNK = 1 << 15
# What torch casts to, by digits and lowest exponent, as it rounds to nearest from float32.
CASTS = {(11, -14): torch.float16, (3, -14): torch.float8_e5m2}
WORDS = {torch.float32: torch.int32, torch.float64: torch.int64}
# All bits but the sign.
LARGEST = {word: torch.iinfo(word).max for word in WORDS.values()}


def noise(x: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return the random bits of stochastic rounding: a word for each element, in logical order."""
    drawn = torch.empty(x.shape, dtype=WORDS[x.dtype], device=x.device)
    return drawn.random_(generator=generator_on(x.device, generator))


def in_torch(x: Tensor, out: Tensor, grid: Grid, mode: Mode, drawn: Tensor | None = None) -> None:
    """Round float32 or float64 into `out`, which may be x."""
    word = WORDS[x.dtype]
    lowest = grid.base + grid.digits - 1 - 127 - grid.stored
    cast = CASTS.get((grid.digits, lowest)) if mode == "nearest" and word == torch.int32 else None
    if x.device.type != "cpu" or x.numel() <= CHUNK:
        found, sign = _nearby(x.view(word), grid, mode, drawn)
        out.copy_((found | sign).view(x.dtype))
        return
    target = out if out.is_contiguous() else torch.empty(x.shape, dtype=x.dtype)
    pieces, places = x.reshape(-1).split(CHUNK), target.view(-1).split(CHUNK)
    draws = (None,) * len(pieces) if drawn is None else drawn.view(-1).split(CHUNK)
    for piece, rounded, draw in zip(pieces, places, draws, strict=True):
        if cast is not None and _calm(piece.view(word) & LARGEST[word], grid):
            rounded.copy_(piece.to(cast))
            continue
        found, sign = _nearby(piece.view(word), grid, mode, draw)
        torch.bitwise_or(found, sign, out=rounded.view(word))
    if target is not out:
        out.copy_(target)


def _nearby(bits: Tensor, grid: Grid, mode: Mode, drawn: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the bits of the rounded numbers without sign, and their signs.

    What is no longer needed is overwritten: the fewer tensors, the more of them stay in the cache.
    """
    size = bits & LARGEST[bits.dtype]
    sign = bits ^ size
    uniform = grid.uniform or _even(size, grid)
    parts: tuple[Any, Any, Any] = (
        (size, 0, grid.normal) if uniform else _parts(size, grid, drawn is not None)
    )
    significand, above, drop = parts
    if drawn is not None and not uniform:
        significand = significand >> (drop - grid.cap).clamp(0, grid.stored + 1)
        drop = drop.clamp(max=grid.cap)
    mask: Any = -1 << drop if uniform else torch.bitwise_left_shift(-1, drop)
    always = grid.normal > 0 and (uniform or not grid.wide)  # something is dropped everywhere
    kept = _add(significand, drop, ~mask, sign, mode, drawn, always) + significand
    kept &= mask
    found = kept + above
    if not uniform and mode in {"nearest", "away", "zero"}:
        # Where nothing is kept there is zero: the sign of -kept, spread over all bits, masks it.
        found &= kept.neg_().bitwise_right_shift_(8 * bits.element_size() - 1)
    elif not uniform:
        # Where all bits but the carry are dropped, there is the smallest number or nothing.
        tiny = drop > grid.stored
        found = torch.where(tiny, (kept != 0).to(bits.dtype) * grid.least, found)
    if not _calm(size, grid):
        over = torch.where(sign < 0, grid.below, grid.above).to(bits.dtype)
        found = torch.where(found > grid.most, over, found)
        found = torch.where(size == grid.infinity, grid.infinite, found)
        found = torch.where(size >= grid.kept, size, found)
    return found, sign


def _even(size: Tensor, grid: Grid) -> bool:
    """Return whether a format without subnormals is known to meet none of the carrier's."""
    if not grid.wide or grid.normal >= grid.stored or not _is_asked(size):
        return False
    try:
        # Zero, less one and without sign, is the largest of all.
        least = ((size - 1) & LARGEST[size.dtype]).amin()
        return bool(least >= (1 << grid.stored) - 1)
    except RuntimeError:
        return False


def _is_asked(size: Tensor) -> bool:
    """Return whether values may be inspected; on a GPU that would cost more than it saves."""
    return size.is_cpu and size.numel() > 0 and not torch.compiler.is_compiling()


def _parts(size: Tensor, grid: Grid, stochastic: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return the significand, what lies above it, and how much to drop.

    Above it lies the exponent field less one.
    """
    hidden = 1 << grid.stored
    above = (size - hidden).clamp(min=0)
    above &= -hidden
    field = above >> grid.stored
    significand = size - above
    if not grid.wide:
        # More bits than the cap are cut off at once; stochastic rounding takes them off before.
        most = None if stochastic else grid.cap
        return significand, above, (grid.base - 1 - field).clamp(grid.normal, most)
    # The carrier's subnormals, too, have their leading digit somewhere.
    carrier = torch.float32 if size.dtype == torch.int32 else torch.float64
    bias = 126 if carrier == torch.float32 else 1022
    length = (significand.to(carrier).view(size.dtype) >> grid.stored) - bias
    normal = (length - grid.digits).clamp(min=0)
    return significand, above, torch.maximum(normal, grid.base - 1 - field)


def _calm(size: Tensor, grid: Grid) -> bool:
    """Return whether it is known that nothing overflows or is spared."""
    if not _is_asked(size):
        return False
    try:
        return bool(size.amax() <= min(grid.most, grid.kept - 1))
    except RuntimeError:  # inside a transform of functions there are no values to ask
        return False


def _add(
    significand: Tensor,
    drop: Any,
    ones: Any,
    sign: Tensor,
    mode: Mode,
    drawn: Tensor | None,
    always: bool,
) -> Any:
    """Return what must be added before the dropped bits are cut off."""
    if mode == "nearest":
        odd = significand >> drop
        odd &= 1 if always else ones & 1
        odd += ones >> 1
        return odd
    if mode == "away":
        return (ones >> 1) + (ones & 1)
    if mode == "up":
        return torch.where(sign < 0, 0, ones).to(sign.dtype)
    if mode == "down":
        return torch.where(sign < 0, ones, 0).to(sign.dtype)
    return 0 if drawn is None else drawn & ones
