"""Rounding with torch alone, on any device: the reference that the kernel equals bit for bit."""

from typing import Any

import torch
from torch import Tensor

from layerlab.numerics.grid import Grid, Mode

# Elements taken at once on a CPU: what rounding needs of them stays in the cache, and torch takes
# them with one thread, which waits for no other.
CHUNK = 1 << 15
WORDS = {torch.float32: torch.int32, torch.float64: torch.int64}


def noise(x: Tensor, generator: torch.Generator | None) -> Tensor:
    """The random bits of stochastic rounding: a word for each element, in logical order.

    Source: Own.
    """
    drawn = torch.empty(x.shape, dtype=WORDS[x.dtype], device=x.device)
    return drawn.random_(generator=generator)


def in_torch(x: Tensor, out: Tensor, grid: Grid, mode: Mode, drawn: Tensor | None = None) -> None:
    """Round float32 or float64 into `out`, which may be x.

    Source: Own.
    """
    word = WORDS[x.dtype]
    if x.device.type != "cpu" or x.numel() <= CHUNK:
        found, sign = _nearby(x.view(word), grid, mode, drawn)
        out.copy_((found | sign).view(x.dtype))
        return
    target = out if out.is_contiguous() else torch.empty(x.shape, dtype=x.dtype)
    pieces, places = x.reshape(-1).split(CHUNK), target.view(-1).split(CHUNK)
    draws = (None,) * len(pieces) if drawn is None else drawn.view(-1).split(CHUNK)
    for piece, place, draw in zip(pieces, places, draws, strict=True):
        found, sign = _nearby(piece.view(word), grid, mode, draw)
        torch.bitwise_or(found, sign, out=place.view(word))
    if target is not out:
        out.copy_(target)


def _nearby(bits: Tensor, grid: Grid, mode: Mode, drawn: Tensor | None) -> tuple[Tensor, Tensor]:
    """The bits of the rounded numbers without sign, and the signs, from the bits of the numbers.

    What is no longer needed is overwritten: the fewer tensors, the more of them stay in the cache.
    """
    size = bits & ((1 << (8 * bits.element_size() - 1)) - 1)
    sign = bits ^ size
    significand, above, drop = _parts(size, grid)
    if drawn is not None and not grid.uniform:
        significand = significand >> (drop - grid.cap).clamp(0, grid.stored + 1)
    if not grid.uniform:
        drop = drop.clamp(max=grid.cap)
    mask: Any = -1 << drop if grid.uniform else torch.bitwise_left_shift(-1, drop)
    kept = _added(significand, drop, ~mask, sign, mode, drawn) + significand
    kept &= mask
    found = kept + above
    if not grid.uniform and mode in {"nearest", "away", "zero"}:
        # Where nothing is kept there is zero: the sign of -kept, spread over all bits, masks it.
        found &= kept.neg_().bitwise_right_shift_(8 * bits.element_size() - 1)
    elif not grid.uniform:
        # Where all bits but the carry are dropped, there is the smallest number or nothing.
        tiny = drop > grid.stored
        found = torch.where(tiny, (kept != 0).to(bits.dtype) * grid.least, found)
    if not _calm(size, grid):
        over = torch.where(sign < 0, grid.below, grid.above).to(bits.dtype)
        found = torch.where(found > grid.most, over, found)
        found = torch.where(size == grid.infinity, grid.infinite, found)
        found = torch.where(size > grid.infinity, size, found)
    return found, sign


def _parts(size: Tensor, grid: Grid) -> tuple[Tensor, Any, Any]:
    """The significand, what lies above it (the exponent field less one), and how much to drop."""
    if grid.uniform:
        return size, 0, grid.normal
    hidden = 1 << grid.stored
    above = (size - hidden).clamp(min=0)
    above &= -hidden
    field = above >> grid.stored
    significand = size - above
    if not grid.wide:
        return significand, above, (grid.base - 1 - field).clamp(min=grid.normal)
    # The carrier's subnormals, too, have their leading digit somewhere.
    carrier = torch.float32 if size.dtype == torch.int32 else torch.float64
    bias = 126 if carrier == torch.float32 else 1022
    length = (significand.to(carrier).view(size.dtype) >> grid.stored) - bias
    normal = (length - grid.digits).clamp(min=0)
    return significand, above, torch.maximum(normal, grid.base - 1 - field)


def _calm(size: Tensor, grid: Grid) -> bool:
    """Whether it is known that nothing overflows; on a GPU asking would cost more than it saves."""
    if size.device.type != "cpu" or size.numel() == 0 or torch.compiler.is_compiling():
        return False
    try:
        return bool(size.amax() <= grid.most)
    except RuntimeError:  # inside a transform of functions there are no values to ask
        return False


def _added(
    significand: Tensor, drop: Any, ones: Any, sign: Tensor, mode: Mode, drawn: Tensor | None
) -> Any:
    """What is added before the dropped bits are cut off."""
    if mode == "nearest":
        odd = significand >> drop
        odd &= ones & 1
        odd += ones >> 1
        return odd
    if mode == "away":
        return (ones >> 1) + (ones & 1)
    if mode == "up":
        return torch.where(sign < 0, 0, ones).to(sign.dtype)
    if mode == "down":
        return torch.where(sign < 0, ones, 0).to(sign.dtype)
    return 0 if drawn is None else drawn & ones
