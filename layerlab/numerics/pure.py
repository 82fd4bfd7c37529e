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
        out.copy_(_nearby(x.view(word), grid, mode, drawn).view(x.dtype))
        return
    target = out if out.is_contiguous() else torch.empty(x.shape, dtype=x.dtype)
    pieces, places = x.reshape(-1).split(CHUNK), target.view(-1).split(CHUNK)
    draws = (None,) * len(pieces) if drawn is None else drawn.view(-1).split(CHUNK)
    for piece, place, draw in zip(pieces, places, draws, strict=True):
        place.copy_(_nearby(piece.view(word), grid, mode, draw).view(x.dtype))
    if target is not out:
        out.copy_(target)


def _nearby(bits: Tensor, grid: Grid, mode: Mode, drawn: Tensor | None) -> Tensor:
    """The bits of the rounded numbers from the bits of the numbers."""
    size = bits & ((1 << (8 * bits.element_size() - 1)) - 1)
    sign = bits ^ size
    # The exponent field times the hidden bit, less one: what lies above the significand.
    field = (size >> grid.stored).clamp(min=1)
    above = (field - 1) << grid.stored
    significand = size - above
    drop = _dropped(significand, field, grid)
    if drawn is not None:
        significand = significand >> (drop - grid.cap).clamp(0, grid.stored + 1)
    drop = drop.clamp(max=grid.cap)
    ones = (torch.ones_like(drop) << drop) - 1
    added = _added(significand, drop, ones, sign, mode, drawn)
    kept = (significand + added) & ~ones
    # Where all bits but the carry are dropped, there is the smallest number or nothing.
    tiny = drop > grid.stored
    found = torch.where(tiny, (kept != 0).to(bits.dtype) * grid.least, kept + above)
    over = torch.where(sign < 0, grid.below, grid.above).to(bits.dtype)
    found = torch.where(found > grid.most, over, found)
    found = torch.where(size == grid.infinity, grid.infinite, found)
    return torch.where(size > grid.infinity, size, found) | sign


def _dropped(significand: Tensor, field: Tensor, grid: Grid) -> Tensor:
    if not grid.wide:
        return (grid.base - field).clamp(min=grid.normal)
    # The carrier's subnormals, too, have their leading digit somewhere.
    carrier = torch.float32 if significand.dtype == torch.int32 else torch.float64
    bias = 126 if carrier == torch.float32 else 1022
    length = (significand.to(carrier).view(significand.dtype) >> grid.stored) - bias
    normal = (length - grid.digits).clamp(min=0)
    return torch.maximum(normal, grid.base - field)


def _added(
    significand: Tensor, drop: Tensor, ones: Tensor, sign: Tensor, mode: Mode, drawn: Tensor | None
) -> Any:
    """What is added before the dropped bits are cut off."""
    if mode == "nearest":
        return (ones >> 1) + ((significand >> drop) & ones & 1)
    if mode == "away":
        return (ones >> 1) + (ones & 1)
    if mode == "up":
        return torch.where(sign < 0, 0, ones)
    if mode == "down":
        return torch.where(sign < 0, ones, 0)
    return 0 if drawn is None else drawn & ones
