"""Numbers with a scale: what quantizing to int8, int4 or scaled fp8 and back makes of a tensor."""

from typing import Any

import torch
from torch import Tensor

from layerlab.errors import UserError
from layerlab.numerics.formats.choose_kernel import kernels_with_scales
from layerlab.numerics.formats.formats import Integer, Scaled
from layerlab.numerics.formats.grid import Mode
from layerlab.numerics.formats.random_bits import generator_on
from layerlab.numerics.formats.scalar import Rounding


def to_integers(
    x: Tensor,
    format: Integer,
    mode: str = "nearest",
    generator: torch.Generator | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Round to whole numbers times their scale, in the dtype of x (float32 or float64).

    Symmetric: s = max |x| / (2^(b-1) - 1), q = round(x / s); of the full range of two's complement
    s = max |x| / (2^(b-1) - 1/2), where the largest number is half a step short of max |x|.
    Asymmetric: s = (max(x, 0) - min(x, 0)) / (2^b - 1), q = round(x / s) + z with
    z = round(-min(x, 0) / s). Scales are those of the finite values; what is infinite becomes the
    largest number and NaN stays NaN.

    Source: jacob18, section 2.1; symmetric: wu20, section 3.1; its full range: frantar22.

    Args:
        out: where the result goes, contiguous and of the dtype of x; it may be x.
    """
    if x.numel() == 0:
        return x.clone() if out is None else out
    _check_axis(x, format)
    kernels = kernels_with_scales(x).integers
    if kernels is not None:
        fused: Tensor = kernels.round_integers(x, format, mode, generator, out)
        return fused
    grouped, restore = _group(x, format)
    finite = torch.where(grouped.isfinite(), grouped, 0)
    low, high = finite.amin(-1, keepdim=True), finite.amax(-1, keepdim=True)
    if format.symmetric:
        scale = _positive(torch.maximum(high, -low) / format.steps)
        zero = torch.zeros_like(scale)
    else:
        low, high = low.clamp(max=0), high.clamp(min=0)
        # Each divided first: their difference may be more than the carrier holds.
        scale = _positive(high / format.steps - low / format.steps)
        zero = torch.round(-low / scale)
    integers = (_whole(grouped / scale, mode, generator) + zero).clamp(*format.ends) - zero
    limit = torch.finfo(x.dtype).max
    if out is not None and (target := _group(out, format)[0]).numel() == x.numel():
        torch.mul(integers, scale, out=target).clamp_(-limit, limit)
        return out
    found = restore((integers * scale).clamp_(-limit, limit))
    return found if out is None else out.copy_(found)  # where zeros pad the last group


def to_scaled(
    x: Tensor,
    format: Scaled,
    mode: Mode = "nearest",
    generator: torch.Generator | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Round to a floating format times its scale, in the dtype of x (float32 or float64).

    s = max |x| / m with m the largest number of the format, q = round(x / s). Scales are those of
    the finite values; what is infinite becomes the largest number and NaN stays NaN.

    Source: micikevicius22; a scale for each channel or group: Own.

    Args:
        out: where the result goes, contiguous and of the dtype of x; it may be x.
    """
    if x.numel() == 0:
        return x.clone() if out is None else out
    grouped, restore = _group(x, format)
    peaks = torch.where(grouped.isfinite(), grouped.abs(), 0).amax(-1, keepdim=True)
    scale = _positive(peaks / format.element.largest)
    limit = torch.finfo(x.dtype).max
    elements = Rounding(format.element, mode, generator)(grouped / scale)
    found = restore((elements * scale).clamp_(-limit, limit))
    return found if out is None else out.copy_(found)


def _positive(scale: Tensor) -> Tensor:
    """Return the scale, kept from 0 and from numbers so small that dividing by them overflows."""
    return scale.clamp(min=torch.finfo(scale.dtype).tiny)


def _whole(x: Tensor, mode: str, generator: torch.Generator | None) -> Tensor:
    if mode == "nearest":
        return x.round()
    if mode == "up":
        return x.ceil()
    if mode == "down":
        return x.floor()
    if mode == "zero":
        return x.trunc()
    if mode == "away":
        cut = x.trunc()
        # Not floor(|x| + 1/2): that sum may round up.
        return torch.where((x - cut).abs() >= 0.5, cut + x.sign(), cut)
    below = x.floor()
    drawn = torch.empty_like(x).uniform_(generator=generator_on(x.device, generator))
    return torch.where(drawn < x - below, below + 1, below)


def _check_axis(x: Tensor, format: Integer) -> None:
    if format.per != "tensor" and x.dim() > 0 and not -x.dim() <= format.axis < x.dim():
        raise UserError(
            f"{format.name} looks along axis {format.axis} of a tensor with {x.dim()} axes; "
            "expected an axis that it has: type for example int8:channel"
        )


def _group(x: Tensor, format: Integer | Scaled) -> tuple[Tensor, Any]:
    """Return the values that share a scale along the last axis, and the way back."""
    if format.per == "tensor" or x.dim() == 0:
        return x.reshape(-1), lambda y: y.view(x.shape)
    moved = x.movedim(format.axis, -1)
    if format.per == "channel":
        return moved, lambda y: y.movedim(-1, format.axis)
    blocks = split_blocks(moved, format.group or 1)
    return blocks, lambda y: join_blocks(y, moved).movedim(-1, format.axis)


def split_blocks(x: Tensor, size: int) -> Tensor:
    """Split the last axis into blocks, on an axis of their own; zeros pad the last one."""
    missing = -x.shape[-1] % size
    filled = torch.nn.functional.pad(x, (0, missing)) if missing else x
    return filled.unflatten(-1, (-1, size))


def join_blocks(blocks: Tensor, like: Tensor) -> Tensor:
    """Join the blocks back to one axis, without the padding."""
    return blocks.flatten(-2)[..., : like.shape[-1]]
