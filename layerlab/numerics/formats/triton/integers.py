"""Whole numbers with a scale, on a GPU: what `integer_formats.py` does, in two reads and one write.

The first read finds the largest and the smallest number of those that share a scale; the second
rounds, and finds them still in a cache, unless they are the whole tensor or a long channel. Scales
and quotients are those of the reference on a CPU, in the carrier's own arithmetic, each operation
rounded by itself. Stochastic rounding draws for each number, and compares as the reference does.

What is proved, and where, is said in `triton_kernel.py`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from layerlab.numerics.formats.formats import Format, Integer
from layerlab.numerics.formats.grid import CARRIERS, Mode, grid
from layerlab.numerics.formats.random_bits import seed_on
from layerlab.numerics.formats.round_reference import WORDS
from layerlab.numerics.formats.triton.kernel import (
    LARGE,
    fit_block,
    launch,
    random_source,
    round_words,
)
from layerlab.numerics.formats.triton.peaks import find_ends, split_ends

# Elements of a program along the axis that shares a scale: where neighbours in memory do not.
ACROSS = 32


@triton.jit
def _real(bits):
    if bits.dtype == tl.int32:
        real = bits.to(tl.float32, bitcast=True)
    else:
        real = bits.to(tl.float64, bitcast=True)
    return real


@triton.jit
def _divide(above, below):
    """Return a quotient that is rounded correctly, in the carrier."""
    if above.dtype == tl.float32:
        quotient = tl.div_rn(above, below)
    else:
        quotient = above / below
    return quotient


@triton.jit
def _round_quotient(quotient, like, GRID: tl.constexpr, MODE: tl.constexpr):
    return _real(round_words(quotient.to(like.dtype, bitcast=True), 0, GRID, MODE))


@triton.jit
def _fit_scale(high, low, GRID: tl.constexpr, MOST: tl.constexpr, SYMMETRIC: tl.constexpr):
    """Return scale and zero point, from the bits of the largest and of minus the smallest."""
    tiny: tl.constexpr = 2.0**-126 if GRID.stored == 23 else 2.0**-1022
    if SYMMETRIC:
        peak = _real(tl.maximum(high, low))
        scale = tl.maximum(_divide(peak, peak * 0.0 + MOST), tiny)
        zero = scale * 0.0
    else:
        most = _real(high) * 0.0 + MOST
        scale = tl.maximum(_divide(_real(high), most) + _divide(_real(low), most), tiny)
        zero = _round_quotient(_divide(_real(low), scale), high, GRID, "nearest")
    return scale, zero


@triton.jit
def _draw_uniform(seed, offsets, like):
    """Return a number from 0 up to 1 for each place, as fine as the carrier is below 1."""
    one, two, _, _ = tl.randint4x(tl.load(seed), offsets)
    if like.dtype == tl.int32:
        uniform = (one >> 8).to(tl.float32) * 2.0**-24
    else:
        wide = (one.to(tl.uint64) << 32) | two.to(tl.uint64)
        uniform = (wide >> 11).to(tl.float64) * 2.0**-53
    return uniform


@triton.jit
def _round_integers(
    x,
    out,
    ends,
    seed,
    draws,
    units,
    size,
    length,
    parts,
    inner,
    GRID: tl.constexpr,
    FIRST: tl.constexpr,
    LAST: tl.constexpr,
    STEPS: tl.constexpr,
    SYMMETRIC: tl.constexpr,
    LIMIT: tl.constexpr,
    MODE: tl.constexpr,
    DRAWN: tl.constexpr,
    LARGE: tl.constexpr,
    UNITS: tl.constexpr,
    SPAN: tl.constexpr,
):
    """Round units of `size` numbers that lie `inner` apart; `parts` of them make up an axis."""
    first = tl.program_id(0)
    if LARGE:
        first = first.to(tl.int64)
    unit = (first * UNITS + tl.arange(0, UNITS))[:, None]
    column, row = unit % inner, unit // inner
    part, outer = row % parts, row // parts
    lanes = tl.arange(0, SPAN)[None, :]
    if ends is not None:
        high, low = tl.load(ends), tl.load(ends + 1)
    else:
        high = unit.to(x.dtype.element_ty) * 0
        low = high
        for start in range(0, size, SPAN):
            lane = start + lanes
            along = part * size + lane
            inside = (unit < units) & (lane < size) & (along < length)
            bits = tl.load(x + (outer * length + along) * inner + column, mask=inside, other=0)
            above, below = split_ends(bits, GRID)
            high = tl.maximum(high, tl.max(above, axis=1, keep_dims=True))
            low = tl.maximum(low, tl.max(below, axis=1, keep_dims=True))
    scale, zero = _fit_scale(high, low, GRID, STEPS, SYMMETRIC)
    for start in range(0, size, SPAN):
        lane = start + lanes
        along = part * size + lane
        inside = (unit < units) & (lane < size) & (along < length)
        offsets = (outer * length + along) * inner + column
        bits = tl.load(x + offsets, mask=inside, other=0)
        quotient = _divide(_real(bits), scale + _real(bits & 0))
        if MODE == "stochastic":
            integers = _round_quotient(quotient, bits, GRID, "down")
            word = ((outer * inner + column) * parts + part) * size + lane
            if DRAWN == "words":
                uniform = tl.load(draws + word, mask=inside, other=0.0)
            else:
                uniform = _draw_uniform(seed, word, bits)
            integers = tl.where(uniform < quotient - integers, integers + 1.0, integers)
        else:
            integers = _round_quotient(quotient, bits, GRID, MODE)
        integers = tl.minimum(tl.maximum(integers + zero, FIRST), LAST) - zero
        found = tl.minimum(tl.maximum(integers * scale, -LIMIT), LIMIT).to(bits.dtype, bitcast=True)
        # What a device makes of a NaN in arithmetic is its own affair.
        size_bits = bits & (GRID.infinity | ((1 << GRID.stored) - 1))
        found = tl.where(size_bits > GRID.infinity, bits | (1 << (GRID.stored - 1)), found)
        tl.store(out + offsets, found, mask=inside)


def round_integers(
    x: Tensor,
    format: Integer,
    mode: Mode,
    generator: torch.Generator | None = None,
    out: Tensor | None = None,
    draws: Tensor | None = None,
) -> Tensor:
    """Round float32 or float64 to whole numbers times their scale, as `to_integers` says.

    Args:
        out: where the result goes, as `to_integers` takes it.
        draws: uniform numbers from 0 up to 1 for stochastic rounding, of the carrier's dtype, one
            for each number of each unit; drawn from the generator if left out.
    """
    contiguous = x.contiguous()
    out, bits = (
        torch.empty_like(contiguous) if out is None else out,
        contiguous.view(WORDS[x.dtype]),
    )
    # Along the axis; how many share a scale there; how far apart they lie.
    length, inner = x.numel(), 1
    if format.per != "tensor" and x.dim() > 0:
        axis = format.axis % x.dim()
        length, inner = x.shape[axis], x.shape[axis + 1 :].numel()
    ends, size = None, (format.group or length)
    if length == x.numel() and size == length:
        ends, size = find_ends(bits, x.dtype), fit_block(length)
    parts = -(-length // size)
    units = x.numel() // length * parts
    span = min(triton.next_power_of_2(size), ACROSS if inner > 1 else fit_block(x.numel()))
    together = max(1, fit_block(x.numel()) // span)
    seed = seed_on(x.device, generator) if mode == "stochastic" and draws is None else None
    launch(
        _round_integers,
        bits,
        -(-units // together),
        out.view(bits.dtype),
        ends,
        seed,
        draws,
        units,
        size,
        length,
        parts,
        inner,
        _whole_numbers(x.dtype),
        *map(float, format.ends),
        float(format.steps),
        format.symmetric,
        float(torch.finfo(x.dtype).max),
        mode,
        random_source(seed, draws),
        units * size > LARGE,
        together,
        span,
    )
    return out


def _whole_numbers(dtype: torch.dtype) -> object:
    """Return the grid of the whole numbers: a format whose numbers lie 1 apart."""
    stored = CARRIERS[dtype][0]
    return grid(Format("whole", stored + 1, stored, None, float("inf")), "nearest", dtype)
