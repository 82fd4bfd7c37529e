"""Blocks that share a scale: the MX formats and NVFP4, quantized and back."""

from functools import partial

import torch
from torch import Tensor

from layerlab.numerics.formats.choose_kernel import has_memory, kernels_with_scales
from layerlab.numerics.formats.formats import FLOATS, Block
from layerlab.numerics.formats.grid import Mode
from layerlab.numerics.formats.integer_formats import join_blocks, split_blocks
from layerlab.numerics.formats.scalar import Rounding

# The exponents that a scale of eight bits without a significand has.
LEAST, MOST = -127, 127
EIGHT = FLOATS["fp8_e4m3"]
# Numbers taken at once on a CPU.
CHUNK = 1 << 18


def to_blocks(
    x: Tensor,
    format: Block,
    mode: Mode = "nearest",
    generator: torch.Generator | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Round each element to the block's format times the scale of its block, in the dtype of x.

    MX: scale = 2^(floor(log2 max |x|) - e) with e the largest exponent of an element. NVFP4: scale
    = fp8_e4m3(max |x| / 6 / s) s with s = max over the tensor |x| / (6 x 448). What is above the
    largest element saturates. Scales are those of the finite values, and are rounded to nearest in
    every mode.

    Source: rouhani23, Algorithm 1; NVFP4: nvidia25, Appendix C.
    Differs: of an infinity or a NaN MX makes the whole block NaN; here an infinity saturates and a
    NaN stays alone, so that a mask does not wipe out its neighbours; and NVFP4's quotients are
    exact, where its source multiplies by reciprocals in float32.

    Args:
        out: where the result goes, contiguous and of the dtype of x; it may be x.
    """
    if x.numel() == 0:
        return x.clone() if out is None else out
    kernels = kernels_with_scales(x).blocks
    if kernels is not None and kernels.is_known(format):
        fused: Tensor = kernels.round_blocks(x, format, mode, generator, out)
        return fused
    rows = torch.atleast_1d(x).reshape(-1, x.shape[-1] if x.dim() else 1)
    # What is needed of them in float64 is eight times what they take.
    count = max(CHUNK // rows.shape[-1], 1) if x.is_cpu and has_memory(x) else len(rows)
    pieces = rows.split(count)
    outer = None
    if format.scale != "power of two":
        outer = _outer_scale(torch.stack([_peaks(piece).amax() for piece in pieces]).amax(), format)
    round = partial(_round, format=format, rounding=Rounding(format.element, mode, generator))
    if len(pieces) == 1:
        found = round(rows, outer=outer).view(x.shape)
        return found.to(x.dtype) if out is None else out.copy_(found)
    target = rows.new_empty(rows.shape) if out is None else out.view(rows.shape)
    for piece, place in zip(pieces, target.split(count), strict=True):
        place.copy_(round(piece, outer=outer))
    return target.view(x.shape) if out is None else out


def _round(rows: Tensor, format: Block, rounding: Rounding, outer: Tensor | None) -> Tensor:
    """Return rounded rows in float64, where the numbers of float32 times any scale are exact."""
    wide = rows.double()
    blocks = split_blocks(wide, format.size)
    peaks = _peaks(blocks)
    scale = _power(peaks, format) if outer is None else _two_level(peaks, format, outer)
    # A scale of zero, which only NVFP4 has, makes its block zero whatever is divided by.
    elements = rounding(blocks / torch.where(scale == 0, 1, scale))
    return join_blocks(elements * scale, wide)


def _peaks(blocks: Tensor) -> Tensor:
    """Return the largest finite size along the last axis."""
    return torch.where(blocks.isfinite(), blocks.abs(), 0).amax(-1, keepdim=True)


def _power(peaks: Tensor, format: Block) -> Tensor:
    highest = format.element.highest
    assert highest is not None, "an element has a largest exponent"
    exponent = torch.frexp(peaks).exponent - 1 - highest
    exponent = torch.where(peaks == 0, LEAST, exponent).clamp(LEAST, MOST)
    return torch.ldexp(torch.ones_like(peaks), exponent)


def _outer_scale(peak: Tensor, format: Block) -> Tensor:
    """Return the scale of a whole tensor, a number of float32."""
    scale = (peak.double() / (format.element.largest * EIGHT.largest)).float().double()
    limits = torch.finfo(torch.float32)
    return scale.clamp(limits.tiny, limits.max)


def _two_level(peaks: Tensor, format: Block, outer: Tensor) -> Tensor:
    """Return a scale in eight bits for each block, under one of the whole tensor."""
    return Rounding(EIGHT)(peaks / format.element.largest / outer) * outer
