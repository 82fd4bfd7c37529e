"""Blocks that share a scale, on a GPU: what `block_formats.py` does, in one read and one write.

NVFP4 reads once more before, for the largest number of the tensor. There are two ways.

Wide: scales and quotients in float64, as in the reference, whose bits are rounded as they are. It
takes float64, formats of many digits, and given words of 64 bits.

Narrow, for float32, in arithmetic of half the width. MX: quotients by a power of two are exact in
float32, but for those so small that only their sign matters. NVFP4: x / s, with x of 24 digits and
s of 4 + 24, is exactly where an element of at most 12 digits is rounded otherwise, or is at least
2^-41 of itself away. A product with the reciprocal of s, which is 2^-51 off, is on the same side,
and is cut to float32 with a last bit that says whether something was cut off. Where stochastic
rounding draws its own words, MX is rounded so too, to 2^-30 of a gap as all of float32.

What is proved, and where, is said in `triton_kernel.py`; here 42 machine instructions for a number
to mxfp4, 81 to nvfp4.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from layerlab.numerics.formats.formats import FLOATS, Block
from layerlab.numerics.formats.grid import Mode, grid
from layerlab.numerics.formats.random_bits import seed_on
from layerlab.numerics.formats.round_reference import WORDS
from layerlab.numerics.formats.triton.kernel import (
    LARGE,
    draw_words,
    fit_block,
    launch,
    random_source,
    round_words,
)
from layerlab.numerics.formats.triton.peaks import find_ends

EIGHT = FLOATS["fp8_e4m3"]
FINEST = -120  # of an element, for the narrow way: far above the last digit of float32
WIDEST_BLOCK = 1024


@triton.jit
def _power(peaks, HIGHEST: tl.constexpr, WIDE: tl.constexpr):
    """Return the scale of MX for each block, and its reciprocal."""
    if WIDE:
        exponent = (_wide(peaks).to(tl.int64, bitcast=True) >> 52) - 1023 - HIGHEST
        exponent = tl.minimum(tl.maximum(exponent, -127), 127)
        scale = ((exponent + 1023) << 52).to(tl.float64, bitcast=True)
        inverse = ((1023 - exponent) << 52).to(tl.float64, bitcast=True)
    else:
        exponent = tl.minimum(tl.maximum((peaks >> 23) - 127 - HIGHEST, -127), 127)
        # 2^-127 is subnormal.
        scale = tl.where(exponent > -127, (exponent + 127) << 23, 1 << 22)
        inverse = tl.where(exponent < 127, (127 - exponent) << 23, 1 << 22)
        scale = scale.to(tl.float32, bitcast=True)
        inverse = inverse.to(tl.float32, bitcast=True)
    return scale, inverse


@triton.jit
def _two_level(peaks, peak, LARGEST: tl.constexpr, EIGHT: tl.constexpr):
    """Return the scale of NVFP4 for each block, under that of the whole tensor."""
    largest = tl.full([1, 1], LARGEST, tl.float64)
    outer_scale = (_wide(peak) / (largest * 448.0)).to(tl.float32).to(tl.float64)
    outer_scale = tl.minimum(tl.maximum(outer_scale, 2.0**-126), 3.4028234663852886e38)
    if EIGHT.stored == 52:
        quotient = (_wide(peaks) / largest / outer_scale).to(tl.int64, bitcast=True)
    else:
        quotient = _stick(_wide(peaks) * (1.0 / (largest * outer_scale)))
    return _wide(round_words(quotient, 0, EIGHT, "nearest")) * outer_scale


@triton.jit
def _stick(quotient):
    """Cut to the bits of float32, odd where more than an error of float64 was cut off."""
    near = quotient.to(tl.float32)
    back = near.to(tl.float64)
    cut = (tl.abs(back - quotient) > tl.abs(quotient) * 2.0**-48).to(tl.int32)
    beyond = (tl.abs(back) > tl.abs(quotient)).to(tl.int32)
    return (near.to(tl.int32, bitcast=True) - (beyond & cut)) | cut


@triton.jit
def _wide(bits):
    """Return the bits of float32 or float64 as float64."""
    if bits.dtype == tl.int32:
        real = bits.to(tl.float32, bitcast=True).to(tl.float64)
    else:
        real = bits.to(tl.float64, bitcast=True)
    return real


@triton.jit
def _bits(real, like):
    """Return the bits of a real number, rounded to the carrier whose bits are `like`."""
    if like.dtype == tl.int32:
        bits = real.to(tl.float32).to(tl.int32, bitcast=True)
    else:
        bits = real.to(tl.int64, bitcast=True)
    return bits


@triton.jit
def _round_blocks(
    x,
    out,
    ends,
    seed,
    words,
    blocks,
    per_row,
    columns,
    GRID: tl.constexpr,
    EIGHT: tl.constexpr,
    INFINITY: tl.constexpr,
    QUIET: tl.constexpr,
    HIGHEST: tl.constexpr,
    LARGEST: tl.constexpr,
    MODE: tl.constexpr,
    DRAWN: tl.constexpr,
    SIZE: tl.constexpr,
    SPAN: tl.constexpr,
    FULL: tl.constexpr,
    LARGE: tl.constexpr,
    ROWS: tl.constexpr,
):
    first = tl.program_id(0)
    if LARGE:
        first = first.to(tl.int64)
    block = (first * ROWS + tl.arange(0, ROWS))[:, None]
    lane = tl.arange(0, SPAN)[None, :]
    word = block * SIZE + lane
    inside = (block < blocks) & (lane < SIZE)
    offsets = word
    if not FULL:
        row = block // per_row
        column = (block - row * per_row) * SIZE + lane
        offsets = row * columns + column
        inside = inside & (column < columns)
    bits = tl.load(x + offsets, mask=inside, other=0)
    size = bits & (INFINITY | (2 * QUIET - 1))
    peaks = tl.max(tl.where(size < INFINITY, size, 0), axis=1, keep_dims=True)
    wide: tl.constexpr = GRID.stored == 52
    if EIGHT is not None:
        scale = _two_level(peaks, tl.maximum(tl.load(ends), tl.load(ends + 1)), LARGEST, EIGHT)
        # A scale of zero makes its block zero whatever is divided by.
        divisor = tl.where(scale == 0.0, 1.0, scale)
        if wide:
            element = (_wide(bits) / divisor).to(tl.int64, bitcast=True)
        else:
            element = _stick(_wide(bits) * (1.0 / divisor))
    else:
        scale, inverse = _power(peaks, HIGHEST, wide)
        if wide:
            element = (_wide(bits) * inverse).to(tl.int64, bitcast=True)
        else:
            quotient = bits.to(tl.float32, bitcast=True) * inverse
            element = quotient.to(tl.int32, bitcast=True)
            element = element | ((quotient == 0.0) & (size != 0)).to(tl.int32)
    noise = element
    if DRAWN == "words":
        noise = tl.load(words + word, mask=(block < blocks) & (lane < SIZE), other=0)
    elif DRAWN == "seed":
        flat = draw_words(seed, first * (ROWS * SPAN), ROWS * SPAN, GRID.stored == 52)
        noise = tl.reshape(flat, [ROWS, SPAN])
    rounded = round_words(element, noise, GRID, MODE)
    if EIGHT is None and not wide:
        found = _bits(rounded.to(tl.float32, bitcast=True) * scale, bits)
    else:
        found = _bits(_wide(rounded) * scale, bits)
    # What a device makes of a NaN in arithmetic is its own affair.
    found = tl.where(size > INFINITY, bits | QUIET, found)
    tl.store(out + offsets, found, mask=inside)


def is_known(format: Block) -> bool:
    """Return whether these kernels round to a format: to all that have a name, and most others."""
    highest = format.element.highest
    reaches = highest is not None and highest >= 0
    return reaches and format.element.overflow != "nan" and format.size <= WIDEST_BLOCK


def round_blocks(
    x: Tensor,
    format: Block,
    mode: Mode,
    generator: torch.Generator | None = None,
    out: Tensor | None = None,
    words: Tensor | None = None,
) -> Tensor:
    """Round float32 or float64 to blocks along the last axis, as `to_blocks` says.

    Args:
        out: where the result goes, as `to_blocks` takes it.
        words: random words of the quotients, as many as the blocks have places, drawn from the
            generator if left out; int64, or int32 for the narrow way.
    """
    contiguous = torch.atleast_1d(x).contiguous()
    if out is None:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if contiguous.numel() == 0:
        return out
    bits, two_level = contiguous.view(WORDS[x.dtype]), format.scale == "fp8_e4m3"
    carrier = torch.float64 if _is_wide(x, format, mode, words) else torch.float32
    own = grid(EIGHT, "nearest", x.dtype)  # for what it says of the carrier
    columns = contiguous.shape[-1]
    per_row = -(-columns // format.size)
    blocks = contiguous.numel() // columns * per_row
    span = triton.next_power_of_2(format.size)
    rows = max(1, fit_block(blocks * span) // span)
    seed = seed_on(x.device, generator) if mode == "stochastic" and words is None else None
    launch(
        _round_blocks,
        bits,
        -(-blocks // rows),
        out.view(bits.dtype),
        find_ends(bits, x.dtype) if two_level else None,
        seed,
        words,
        blocks,
        per_row,
        columns,
        grid(format.element, mode, carrier),
        grid(EIGHT, "nearest", carrier) if two_level else None,
        own.infinity,
        1 << (own.stored - 1),
        format.element.highest,
        float(format.element.largest),
        mode,
        random_source(seed, words),
        format.size,
        span,
        columns % format.size == 0,
        blocks * span > LARGE,
        rows,
    )
    return out


def _is_wide(x: Tensor, format: Block, mode: Mode, words: Tensor | None) -> bool:
    """Return whether quotients are rounded in 64 bits."""
    if x.dtype == torch.float64 or (words is not None and words.dtype == torch.int64):
        return True
    two_level, element = format.scale == "fp8_e4m3", format.element
    if two_level and mode == "stochastic":  # which reads what the narrow way cuts off
        return True
    assert element.highest is not None, "checked by is_known"
    narrow = element.lowest is not None and element.lowest - element.digits + 1 >= FINEST
    few = element.digits <= (12 if two_level else 22)
    return not (narrow and few and element.highest <= 126)
