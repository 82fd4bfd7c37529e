"""Formats of an emulation, by what is rounded: a frozen value."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from layerlab.errors import UserError
from layerlab.numerics.emulation.autocast import DEVICES, FORMATS
from layerlab.numerics.formats.formats import SINGLE, AnyFormat, Format, find
from layerlab.numerics.formats.round import GivenFormat
from layerlab.validation import Constraint, short_repr

MODES = ("as-run", "flat", "autocast")
# Digits p of which 2p + 2 fit into float32, and the exponent of the smallest number of float32: its
# product, sum, quotient or root of such numbers is then rounded to the same as the exact one.
NARROW = 11
FINEST = -149
# What a generator of random numbers takes.
SEED = Constraint(kind=int, least=-(2**63), most=2**64 - 1)
TERMS = Constraint(kind=int, least=1)


@dataclass(frozen=True, kw_only=True)
class EmulatedArithmetic:
    """The arithmetic of an emulated model.

    Attributes:
        low: nominal dtype of the parameters, which the model's code sees.
        wide: dtype that values are held in.
        results: format that results are rounded to, by nominal dtype; none there, no rounding.
        weights: format of the parameters that products read.
        parameters: format of all others, as gains and biases.
        activations: format of what is multiplied with parameters.
        cache: format of keys and values as attention reads them.
        rounding: mode of rounding.
        seed: of stochastic rounding.
        accumulate: sums inside matrix products are rounded every so many terms; None: exact.
        autocast: dtype that torch.autocast casts to around the forward pass; None: it does not run.
        device: whose rules of autocast; None: those of the device that the model is on.
    """

    low: torch.dtype
    wide: torch.dtype
    results: Mapping[torch.dtype, AnyFormat] = field(default_factory=dict)
    weights: AnyFormat | None = None
    parameters: AnyFormat | None = None
    activations: AnyFormat | None = None
    cache: AnyFormat | None = None
    rounding: str = "nearest"
    seed: int = 0
    accumulate: int | None = None
    autocast: torch.dtype | None = None
    device: str | None = None


def make_arithmetic(
    format: GivenFormat,
    mode: str = "as-run",
    *,
    weights: GivenFormat | None = None,
    activations: GivenFormat | None = None,
    cache: GivenFormat | None = None,
    rounding: str = "nearest",
    seed: Any = 0,
    accumulate: Any = None,
    device: str | None = None,
) -> EmulatedArithmetic:
    """Return the arithmetic of a model that is run in a format.

    `as-run` rounds what the code computes in its own low dtype to the format, and leaves what it
    widens to float32 in float32. `flat` rounds every result to the format. `autocast` leaves the
    parameters in float32, and rounds what torch.autocast casts to bf16 or fp16, and what is
    computed in it. What has scales is a format of storage: weights and the other factors of
    products with them are rounded, but for head and router, and results are bf16. tf32 is a format
    of factors: as-run, results are float32.

    Raises:
        UserError: unknown format, mode or device, a format that autocast does not know, an
            accumulation of no number of terms, or no seed.
    """
    if mode not in MODES:
        names = ", ".join(map(repr, MODES))
        raise UserError(f"no mode is called {short_repr(mode)}; type one of {names}")
    if accumulate is not None and accumulate not in TERMS:
        raise UserError(
            f"accumulate={short_repr(accumulate)} is no number of terms; expected {TERMS}, or "
            "None: type accumulate=1"
        )
    if seed not in SEED:
        raise UserError(f"seed={short_repr(seed)} is no seed; expected {SEED}: type seed=0")
    factors, result = _split(find(format), mode)
    met = None if getattr(factors, "weights_only", False) else factors
    low = _low(result)
    mixed = mode == "autocast"
    if mode not in modes(format):
        raise UserError(
            f"torch.autocast knows bf16 and fp16, not {short_repr(format)}; type one of them, or"
            " mode='as-run', which takes every format"
        )
    if device is not None and (not mixed or device not in DEVICES):
        raise UserError(
            f"device={short_repr(device)} goes with mode='autocast' alone, whose rules are those of"
            " 'cpu' or 'cuda'; leave it out for those of the device that the model is on"
        )
    # What is summed of factors is float32 in hardware too.
    wide = carrier(result) if factors is None else torch.float32
    own = [find(one) for one in (weights, activations, cache) if one is not None]
    if any(isinstance(one, Format) and one.digits > SINGLE for one in own):
        wide = torch.float64
    results = {dtype: result for dtype in {low, *_also(mode)}}
    if mode == "as-run" and wide == torch.float64 and low != torch.float64:
        results.setdefault(torch.float32, cast(Format, find("fp32")))
    if wide == torch.float32 and results.get(torch.float32, result).name == "fp32":
        results.pop(torch.float32, None)
    parameters = None if mixed else result
    return EmulatedArithmetic(
        low=torch.float32 if mixed else low,
        wide=wide,
        results=results,
        weights=find(weights) if weights is not None else factors or parameters,
        parameters=parameters,
        activations=find(activations) if activations is not None else met,
        cache=find(cache) if cache is not None else None,
        rounding=rounding,
        seed=seed,
        accumulate=accumulate,
        autocast=low if mixed else None,
        device=device,
    )


def _split(format: AnyFormat, mode: str) -> tuple[AnyFormat | None, Format]:
    """Split off the format of the factors of products, if it has its own, from that of results."""
    if not isinstance(format, Format):
        return format, cast(Format, find("bf16"))
    if format.name == "tf32" and mode == "as-run":
        return format, cast(Format, find("fp32"))
    return None, format


def modes(format: GivenFormat) -> tuple[str, ...]:
    """Return the modes that a format can be emulated in."""
    named = getattr(find(format), "name", "") in FORMATS
    return tuple(mode for mode in MODES if named or mode != "autocast")


def exact(low: torch.dtype) -> EmulatedArithmetic:
    """Return the reference: float64 throughout, whatever dtype the code asks for."""
    return EmulatedArithmetic(low=low, wide=torch.float64)


def _low(format: Format) -> torch.dtype:
    """Return the dtype that the code of a model run in such a format would see."""
    if format.digits > SINGLE:
        return torch.float64
    if format.digits == SINGLE:
        return torch.float32
    return torch.float16 if format.name == "fp16" else torch.bfloat16


def carrier(format: Format) -> torch.dtype:
    """Return the dtype that holds what one operation gives until it is rounded to a format.

    float32 if 2 p + 2 <= 24,  lowest >= 3 p - 150,  highest <= 127;   else float64

    Then rounding twice is rounding once, to nearest, of a sum, product, quotient or root: proved in
    docs/precision.md. A format without limits to its exponents has no carrier but the wider one.

    Source: figueroa95; Own for numbers near the smallest.

    Example:
        >>> [str(carrier(find(name))) for name in ("bf16", "fp16", "tf32")]
        ['torch.float32', 'torch.float32', 'torch.float64']
    """
    if format.lowest is None or format.highest is None or format.digits > NARROW:
        return torch.float64
    fine = format.lowest >= 3 * format.digits + FINEST - 1
    return torch.float32 if fine and format.highest <= 127 else torch.float64


def _also(mode: str) -> tuple[torch.dtype, ...]:
    """Return the nominal dtypes that are rounded beside the low one."""
    if mode != "flat":
        return ()
    return (torch.float16, torch.bfloat16, torch.float32, torch.float64)
