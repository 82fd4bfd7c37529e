"""Rounding tensors to a format, in the carrier that holds them.

`round_to` rounds once; `rounder` gives a function for those who round after every operation. Both
take the fused kernel where it is there, and pure torch elsewhere; the bits are the same.
"""

import difflib
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from layerlab import UserError
from layerlab.domain import shown
from layerlab.numerics.format import AnyFormat, Format, find
from layerlab.numerics.grid import CARRIERS, MODES, Grid, grid

Rounder: TypeAlias = Callable[..., Tensor]

# Elements that pure torch takes at once on a CPU: what it needs of them then stays in the cache.
CHUNK = 1 << 16
WORDS = {torch.float32: torch.int32, torch.float64: torch.int64}
HALVES = (torch.float16, torch.bfloat16)


def round_to(
    x: Tensor,
    format: str | AnyFormat,
    mode: str = "nearest",
    generator: torch.Generator | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Round every element to a number of the format; the dtype and the shape stay.

    NaN stays NaN, bit for bit in float32 and float64; zeros keep their sign, and so do numbers that
    round to zero. The gradient passes straight through, as if nothing had been rounded.

    Source: ieee19, section 4.3, for the modes; croci22, section 2, for stochastic rounding.

    Args:
        x: float32 or float64, each rounded once; float16 and bfloat16 pass through float32.
        format: as `find` reads it.
        mode: nearest (ties to even), away (nearest, ties away from zero), zero, up, down, or
            stochastic: up or down with a chance that makes the mean right, to 2^-30 of the gap in
            float32 and 2^-62 in float64.
        generator: draws for stochastic rounding; torch's own if left out.
        out: where the result goes; it may be x.

    Raises:
        UserError: an unknown format or mode, a tensor that is not of floating point, or an `out`
            that does not fit.

    Example:
        >>> round_to(torch.tensor([1.01, 300.0, 1e9]), "fp8_e4m3")
        tensor([  1., 288., 448.])
    """
    return rounder(format, mode, generator)(x, out)


def rounder(
    format: str | AnyFormat, mode: str = "nearest", generator: torch.Generator | None = None
) -> Rounder:
    """A function of a tensor, and of `out` if wanted, that rounds as `round_to` does.

    Source: Own.

    Raises:
        UserError: an unknown format or mode.

    Example:
        >>> rounder("bf16")(torch.tensor([1.001]))
        tensor([1.])
    """
    found = find(format)
    if mode not in MODES:
        near = difflib.get_close_matches(str(mode), MODES, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UserError(
            f"no rounding mode is called {shown(mode)}; {hint}known: {', '.join(MODES)}"
        )
    if not isinstance(found, Format):
        raise NotImplementedError(found.name)

    def rounded(x: Tensor, out: Tensor | None = None) -> Tensor:
        return _rounded(x, found, mode, generator, out)

    return rounded


def _rounded(x: Tensor, format: Format, mode: Any, generator: Any, out: Tensor | None) -> Tensor:
    _check(x, out)
    if x.requires_grad and torch.is_grad_enabled():
        straight: Tensor = _Straight.apply(x, lambda y: _rounded(y, format, mode, generator, out))
        return straight
    if x.dtype in HALVES:
        wide = _rounded(x.float(), format, mode, generator, None).to(x.dtype)
        return wide if out is None else out.copy_(wide)
    if out is None:
        out = torch.empty_like(x)
    in_torch(x, out, grid(format, mode, x.dtype), mode, generator)
    return out


def _check(x: Tensor, out: Tensor | None) -> None:
    if x.dtype not in CARRIERS and x.dtype not in HALVES:
        raise UserError(
            f"cannot round a tensor of {x.dtype}; expected float32, float64, float16 or bfloat16: "
            "type x.float() first"
        )
    if out is not None and (out.shape != x.shape or out.dtype != x.dtype):
        raise UserError(
            f"out is {tuple(out.shape)} of {out.dtype}, x is {tuple(x.shape)} of {x.dtype}; "
            "expected the same: type out=torch.empty_like(x)"
        )


class _Straight(torch.autograd.Function):
    """Rounding whose gradient is that of the identity."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rounded: Callable[[Tensor], Tensor]) -> Tensor:
        return rounded(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, None]:
        return grads[0], None


def in_torch(
    x: Tensor, out: Tensor, grid: Grid, mode: str, generator: torch.Generator | None = None
) -> None:
    """Round float32 or float64 with torch alone; the reference that the kernel equals bit for bit.

    Source: Own.
    """
    word = WORDS[x.dtype]
    noise = None
    if mode == "stochastic":
        noise = torch.empty(x.shape, dtype=word, device=x.device).random_(generator=generator)
    if x.device.type != "cpu" or x.numel() <= CHUNK:
        out.copy_(_nearby(x.view(word), grid, mode, noise).view(x.dtype))
        return
    target = out if out.is_contiguous() else torch.empty(x.shape, dtype=x.dtype)
    source, flat = x.reshape(-1), target.view(-1)
    draws = (None,) * len(source) if noise is None else noise.view(-1).split(CHUNK)
    for piece, place, drawn in zip(source.split(CHUNK), flat.split(CHUNK), draws, strict=False):
        place.copy_(_nearby(piece.view(word), grid, mode, drawn).view(x.dtype))
    if target is not out:
        out.copy_(target)


def _nearby(bits: Tensor, grid: Grid, mode: str, noise: Tensor | None) -> Tensor:
    """The bits of the rounded numbers from the bits of the numbers."""
    size = bits & ((1 << (8 * bits.element_size() - 1)) - 1)
    sign = bits ^ size
    # The exponent field times the hidden bit, less one: what lies above the significand.
    field = (size >> grid.stored).clamp_(min=1)
    above = (field - 1) << grid.stored
    significand = size - above
    drop = _dropped(significand, field, grid)
    if noise is not None:
        significand >>= (drop - grid.cap).clamp_(0, grid.stored + 1)
    drop.clamp_(max=grid.cap)
    ones = (torch.ones_like(drop) << drop) - 1
    added = _added(significand, drop, ones, sign, mode, noise)
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
        return (grid.base - field).clamp_(min=grid.normal)
    # The carrier's subnormals, too, have their leading digit somewhere.
    carrier = torch.float32 if significand.dtype == torch.int32 else torch.float64
    bias = 126 if carrier == torch.float32 else 1022
    length = (significand.to(carrier).view(significand.dtype) >> grid.stored) - bias
    normal = (length - grid.digits).clamp_(min=0)
    return torch.maximum(normal, grid.base - field)


def _added(
    significand: Tensor, drop: Tensor, ones: Tensor, sign: Tensor, mode: str, noise: Tensor | None
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
    return 0 if noise is None else noise & ones
