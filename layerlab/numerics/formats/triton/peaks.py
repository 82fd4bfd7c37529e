"""The largest and the smallest number of a tensor on a GPU, for scales that all of it shares."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from layerlab.numerics.formats.formats import FLOATS
from layerlab.numerics.formats.grid import grid
from layerlab.numerics.formats.triton.kernel import LARGE, fit_block, launch

SPREAD = 8  # times the elements of another program: each of them ends in one atomic operation


@triton.jit
def split_ends(bits, GRID: tl.constexpr):
    """Return the bits of finite positive numbers, and of negative ones without sign; else 0."""
    size = bits & (GRID.infinity | ((1 << GRID.stored) - 1))
    size = tl.where(size < GRID.infinity, size, 0)
    return tl.where(bits < 0, 0, size), tl.where(bits < 0, size, 0)


@triton.jit
def _find_ends(x, ends, count, GRID: tl.constexpr, LARGE: tl.constexpr, BLOCK: tl.constexpr):
    first = tl.program_id(0)
    if LARGE:
        first = first.to(tl.int64)
    offsets = first * BLOCK + tl.arange(0, BLOCK)
    above, below = split_ends(tl.load(x + offsets, mask=offsets < count, other=0), GRID)
    high, low = tl.max(above, axis=0), tl.max(below, axis=0)
    # What is there only grows: an old value may be asked whether it is worth the trouble.
    if high > tl.load(ends):
        tl.atomic_max(ends, high, sem="relaxed")
    if low > tl.load(ends + 1):
        tl.atomic_max(ends + 1, low, sem="relaxed")


def find_ends(bits: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the bits of the largest finite number and of minus the smallest; 0 if none is above 0.

    Args:
        bits: of numbers of the dtype, contiguous.
    """
    ends, count = torch.zeros(2, dtype=bits.dtype, device=bits.device), bits.numel()
    block = min(SPREAD * fit_block(count), 1 << 18)
    carrier = grid(FLOATS["fp32"], "nearest", dtype)  # for what it says of the carrier
    launch(_find_ends, bits, -(-count // block), ends, count, carrier, count > LARGE, block)
    return ends
