"""Rounding tensors to a format, in the carrier that holds them.

`round_to` rounds once; `rounder` gives a function for those who round after every operation. Both
take the fused kernel where it is there, and pure torch elsewhere; the bits are the same, but for
what stochastic rounding draws.
"""

from collections.abc import Callable
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

from layerlab.errors import UserError
from layerlab.numerics.formats.block_formats import to_blocks
from layerlab.numerics.formats.choose_kernel import has_memory
from layerlab.numerics.formats.formats import AnyFormat, Block, Format, Scaled, find
from layerlab.numerics.formats.grid import CARRIERS, HALVES, MASK, MODES, Mode
from layerlab.numerics.formats.integer_formats import to_integers, to_scaled
from layerlab.numerics.formats.scalar import Rounding
from layerlab.validation import short_repr, suggest

Rounder: TypeAlias = Callable[..., Tensor]
# As `find` reads it.
GivenFormat: TypeAlias = str | AnyFormat | torch.dtype
# Formats that reach as far as the masks that code writes for them.
SPANNING = frozenset({"bf16", "fp16", "fp32", "fp64"})


def round_to(
    x: Tensor,
    format: GivenFormat,
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
            float32 and 2^-62 in float64, of what lies within the range of the format. The largest
            entries of a block may lie above it, as their scale is rounded down in MX and to nearest
            in NVFP4: they saturate, and their mean is too small. In nvfp4, beside a block that
            reaches 1, a block of 0.3 becomes 0.2857.
        generator: draws for stochastic rounding; torch's own if left out. One of another device
            than x gives the seed of a draw there. A seed always gives the same result on one kind
            of device, and another one elsewhere.
        out: where the result goes; it may be x, or overlap it.

    Raises:
        UserError: an unknown format or mode, what is no dense tensor of floating point, an `out`
            that does not fit, or a generator that is none.

    Example:
        >>> round_to(torch.tensor([1.01, 300.0, 1e9]), "fp8_e4m3")
        tensor([  1., 288., 448.])
    """
    return rounder(format, mode, generator)(x, out)


def rounder(
    format: GivenFormat, mode: str = "nearest", generator: torch.Generator | None = None
) -> Rounder:
    """Return a function of a tensor, and of `out` if wanted, that rounds as `round_to` does.

    Raises:
        UserError: an unknown format or mode, or a generator that is none.

    Example:
        >>> rounder("bf16")(torch.tensor([1.001]))
        tensor([1.])
    """
    found = find(format)
    if mode not in MODES:
        hint = suggest(mode, MODES)
        raise UserError(
            f"no rounding mode is called {short_repr(mode)}; {hint}known: {', '.join(MODES)}"
        )
    if generator is not None and not isinstance(generator, torch.Generator):
        raise UserError(
            f"generator is {short_repr(generator)}; expected a torch.Generator: "
            "type for example generator=torch.Generator().manual_seed(5)"
        )
    return _Rounder(_apply(found, cast(Mode, mode), generator))


def sparing(format: AnyFormat, mode: str, generator: torch.Generator | None) -> Rounder:
    """Return a function that rounds as `rounder` does, but keeps what code writes as a mask."""
    if isinstance(format, Format):
        spare = format.name not in SPANNING
        return _Rounder(Rounding(format, cast(Mode, mode), generator, spare))
    round = rounder(format, mode, generator)
    return lambda x, out=None: torch.where(x.abs() < MASK, round(x), x, out=out)


def _apply(format: AnyFormat, mode: Mode, generator: torch.Generator | None) -> Rounder:
    """Return a function that rounds what has passed the checks, without regard to gradients."""
    if isinstance(format, Format):
        return Rounding(format, mode, generator)

    def together(x: Tensor, out: Tensor | None = None) -> Tensor:
        wide = x.detach().float() if x.dtype in HALVES else x.detach()
        direct = out if out is not None and _takes_result(out, x) else None
        if isinstance(format, Block):
            found = to_blocks(wide, format, mode, generator, direct)
        elif isinstance(format, Scaled):
            found = to_scaled(wide, format, mode, generator, direct)
        else:
            found = to_integers(wide, format, mode, generator, direct)
        if x.dtype in HALVES:
            # The last step up may be more than sixteen bits hold.
            limit = torch.finfo(x.dtype).max
            found = found.clamp(-limit, limit).to(x.dtype)
        return found if out is None or out is direct else out.copy_(found)

    return together


def _takes_result(out: Tensor, x: Tensor) -> bool:
    """Return whether a kernel may write the result of x there, element by element."""
    return (
        x.dtype in CARRIERS
        and has_memory(x)
        and has_memory(out)
        and out.is_contiguous()
        and not out.is_neg()
    )


def _shares_memory(out: Tensor, x: Tensor) -> bool:
    """Return whether writing into one tensor may change what is still to be read of the other."""
    if out is x or not has_memory(out) or not has_memory(x):
        return False
    return out.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


class _Rounder:
    """The function that `rounder` returns; it sees to checks and gradients."""

    def __init__(self, apply: Rounder) -> None:
        self._apply = apply

    def __call__(self, x: Any, out: Any = None) -> Tensor:
        if (
            isinstance(x, Tensor)
            and x.layout is torch.strided
            and x.dtype in CARRIERS
            and (out is None or (out is x and x.is_contiguous()))
            and not x.requires_grad
        ):
            return self._apply(x, out)
        _check(x, out)
        if x.requires_grad and torch.is_grad_enabled():
            straight: Tensor = _Straight.apply(x, self)
            return straight
        if out is not None and _shares_memory(out, x):
            return cast(Tensor, out.copy_(self._apply(x)))
        return self._apply(x, out)


def _check(x: Any, out: Any) -> None:
    if not isinstance(x, Tensor):
        # Named by its type: a large array would be written out for nothing.
        module = type(x).__module__.split(".")[0]
        typed = "torch.from_numpy(x)" if module == "numpy" else "torch.tensor(x)"
        raise UserError(f"cannot round a {type(x).__name__}; expected a torch tensor: type {typed}")
    if x.layout is not torch.strided:
        raise UserError(
            f"cannot round a tensor of layout {x.layout}; expected a dense one: "
            "type x.to_dense() first"
        )
    if x.dtype not in CARRIERS and x.dtype not in HALVES:
        raise UserError(
            f"cannot round a tensor of {x.dtype}; expected float32, float64, float16 or bfloat16: "
            "type x.float() first"
        )
    if out is None:
        return
    if not isinstance(out, Tensor) or out.layout is not torch.strided:
        raise UserError(
            f"out is a {type(out).__name__}; expected a dense tensor like x: "
            "type out=torch.empty_like(x)"
        )
    if out.shape != x.shape or out.dtype != x.dtype or out.device != x.device:
        raise UserError(
            f"out is {tuple(out.shape)} of {out.dtype}, x is {tuple(x.shape)} of {x.dtype}; "
            "expected the same: type out=torch.empty_like(x)"
        )
    if has_memory(out) and torch._debug_has_internal_overlap(out) == 1:
        raise UserError(
            "several elements of out lie in one place, as an expanded tensor's do; "
            "type out=torch.empty_like(x)"
        )
    if x.requires_grad and torch.is_grad_enabled():
        raise UserError(
            "out= carries no gradient back to x, which requires one; leave out away, or round "
            "under torch.no_grad()"
        )


class _Straight(torch.autograd.Function):
    """Rounding whose gradient is that of the identity."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rounded: Rounder) -> Tensor:
        return rounded(x.detach())

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, None]:
        return grads[0], None
