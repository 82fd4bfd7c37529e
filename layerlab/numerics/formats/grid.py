"""A format seen from a carrier: which bits of a float32 or float64 its rounding keeps.

Rounding is whole-number arithmetic on the carrier's bits, so that no flag of the processor (flush
to zero) touches it, and no constant overflows. The kernel and pure torch read the same numbers.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
import torch

from layerlab.numerics.formats.formats import Format, largest

Mode: TypeAlias = Literal["nearest", "away", "zero", "up", "down", "stochastic"]
MODES: tuple[Mode, ...] = ("nearest", "away", "zero", "up", "down", "stochastic")

# Bits of the stored significand, bias of the exponent, and random bits of stochastic rounding.
CARRIERS = {torch.float32: (23, 127, 30), torch.float64: (52, 1023, 62)}
# What passes through float32.
HALVES = (torch.float16, torch.bfloat16)
FAR = 1 << 20
# A number beyond this is a mask, not a value: rounded it might become infinite, and inf - inf NaN.
MASK = 1e30


@dataclass(frozen=True)
class Grid:
    """The numbers that rounding needs, all of them whole.

    A positive carrier number is significand x 2^(E - bias - stored), E its exponent field (at least
    1). Of its significand, max(normal, base - E) bits are dropped, at most `cap` of them.

    Attributes:
        stored: bits of the carrier's stored significand.
        digits: of the format.
        normal: bits dropped where the format is normal.
        base: minus E, the bits dropped where the format is subnormal.
        cap: more bits than this are never dropped at once.
        wide: the format is normal where the carrier is subnormal.
        least: the bits of the smallest positive number of the format.
        most: the bits of its largest.
        above: the bits that a positive overflow becomes.
        below: the bits, without sign, that a negative overflow becomes.
        infinite: the bits that an infinity becomes.
        infinity: the bits of the carrier's own.
        kept: from these bits on a number stays as it is: NaN, and masks where they are spared.
    """

    stored: int
    digits: int
    normal: int
    base: int
    cap: int
    wide: bool
    least: int
    most: int
    above: int
    below: int
    infinite: int
    infinity: int
    kept: int

    @property
    def uniform(self) -> bool:
        """Return whether equally many bits are dropped everywhere, and a stored one is kept."""
        return not self.wide and self.base - 1 <= self.normal < self.stored


@lru_cache(maxsize=1024)
def grid(format: Format, mode: Mode, dtype: torch.dtype, spare: bool = False) -> Grid:
    """Return what rounding to a format does to the bits of a carrier.

    With `spare`, what code writes as a mask (`MASK` and beyond) stays as it is.

    Source: ieee19, sections 4.3 and 7.4, for overflow in each mode; ocp23, conversion to eight
    bits, for saturation and formats that have no infinity.
    """
    stored, bias, random = CARRIERS[dtype]
    infinity = (2 * bias + 1) << stored
    most = _most(format, bias, dtype)
    special = {"inf": infinity, "nan": infinity | (1 << (stored - 1)), "saturate": most}
    over = special[format.overflow]
    lowest = -FAR if format.lowest is None else format.lowest
    field = lowest - format.digits + 1 + bias
    return Grid(
        stored=stored,
        digits=format.digits,
        normal=max(0, stored + 1 - format.digits),
        base=max(field + stored, -FAR),
        cap=random if mode == "stochastic" else stored + 2,
        wide=lowest < 1 - bias,
        least=min(max(field, 0) << stored, infinity),
        most=most,
        above=most if mode in {"zero", "down"} else over,
        below=most if mode in {"zero", "up"} else over,
        infinite=over,
        infinity=infinity,
        kept=_bits(MASK, dtype) if spare else infinity + 1,
    )


def _most(format: Format, bias: int, dtype: torch.dtype) -> int:
    """Return the bits of the largest number of the format that fits into the carrier."""
    held = format.largest
    if format.highest is None or format.highest > bias:
        held = largest(format.digits, bias)
    near = _bits(held, dtype)
    return near - (dtype == torch.float32 and float(np.int32(near).view(np.float32)) > held)


def _bits(value: float, dtype: torch.dtype) -> int:
    if dtype == torch.float64:
        return int(np.float64(value).view(np.int64))
    with np.errstate(over="ignore"):
        return int(np.float32(value).view(np.int32))
