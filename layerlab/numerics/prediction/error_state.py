"""Error state of every value, a variance or a bound, and its propagation.

Both are numbers beside the values, and most steps act on them alike: a product with W is one with
|W|^p, p = 2 for variances and 1 for bounds. They part where a function bends and where a result is
rounded.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from layerlab.numerics.formats.formats import (
    MOST_DIGITS,
    AnyFormat,
    Block,
    Format,
    Integer,
    Scaled,
)
from layerlab.numerics.formats.grid import MASK
from layerlab.numerics.formats.round import SPANNING, rounder
from layerlab.shapes import Map

StateKind = Literal["variance", "bound"]
# What is left out of nothing: the spread of an exact value.
ErrorState = Tensor | None
# Room for the float64 sums that a bound itself is made of.
ROOM = 1 + 2.0**-36


@dataclass(frozen=True, kw_only=True)
class Function:
    """A function of one variable, as far as errors go through it.

    Attributes:
        slope: its derivative from argument and result.
        bend: sup |f''|; None for a monotone function, whose ends say all.
        steep: sup |f'|; infinite if there is none.
        units: how many unit roundoffs a library's float32 result is off, of its own size or,
            with `outer`, of the argument's.
        outer: see `units`.
    """

    slope: Callable[[Tensor, Tensor], Tensor]
    bend: float | None = None
    steep: float = math.inf
    units: int = 8
    outer: bool = False


class Algebra(ABC):
    """The rules by which spreads of one kind are made and combined.

    Attributes:
        power: p; a factor c of a value is |c|^p for its spread.

    Args:
        unit: roundoff of the arithmetic that results are made in before they are rounded.
    """

    power: int

    def __init__(self, unit: float) -> None:
        self.unit = unit

    def size(self, x: Tensor) -> Tensor:
        """Return |x|^p."""
        x = x.byte() if x.dtype == torch.bool else x  # a mask that numbers are multiplied with
        return x.abs() if self.power == 1 else x.square()

    def factor(self, number: int | float) -> float:
        return float(abs(number) ** self.power)

    @abstractmethod
    def through(self, x: Tensor, y: Tensor, s: Tensor, f: Map, function: Function) -> Tensor:
        """Return the spread of y = f(x)."""

    @abstractmethod
    def divisor(self, x: Tensor, s: ErrorState) -> Tensor:
        """Return the size that |x| counts as below a fraction."""

    @abstractmethod
    def slack(self, terms: int | float, size: Callable[[], Tensor]) -> ErrorState:
        """Return what the arithmetic behind a result may add: gamma_terms of a size."""

    @abstractmethod
    def round(self, x: Tensor, s: ErrorState, format: Format, mode: str) -> ErrorState:
        """Return the spread after rounding."""

    @abstractmethod
    def ends(self, x: Tensor, s: ErrorState) -> tuple[Tensor, Tensor]:
        """Return the smallest and the largest value to be considered."""

    def overflows(self, x: Tensor, s: ErrorState, format: Format, mode: str) -> Tensor | None:
        """Return which finite values certainly overflow; None for formats that never overflow."""
        if format.overflow != "inf" or format.highest is None or format.digits >= MOST_DIGITS:
            return None
        most = x.abs().amax() if x.numel() else 0.0
        if most < format.largest:
            return None
        low, high = self.ends(x, s)
        sides = _directions(mode)
        lost = _spare(low, format, sides[0]).isinf() & _spare(high, format, sides[1]).isinf()
        return lost & (low.sign() == high.sign()) & x.isfinite()

    @abstractmethod
    def store(
        self, x: Tensor, kept: Tensor, s: ErrorState, format: AnyFormat, mode: str
    ) -> ErrorState:
        """Return the spread of `kept`, which a storage format made of x.

        Its scales depend on all of x.
        """

    @abstractmethod
    def spread(self, s: ErrorState, like: Tensor) -> Tensor:
        """Return what is reported: a standard deviation, or the bound."""


class VarianceAlgebra(Algebra):
    """First order: variances of independent errors, through the squares of derivatives."""

    power = 2

    def through(self, x: Tensor, y: Tensor, s: Tensor, f: Map, function: Function) -> Tensor:
        return _never(function.slope(x, y).square() * s, s)

    def divisor(self, x: Tensor, s: ErrorState) -> Tensor:
        return x.abs()

    def slack(self, terms: int | float, size: Callable[[], Tensor]) -> ErrorState:
        return None

    def round(self, x: Tensor, s: ErrorState, format: Format, mode: str) -> ErrorState:
        """Add the variance that rounding adds to a value known up to its spread.

        E[(fl(x) - x)^2] for x + e, e normal with variance v and gap g of the format at x, is
        g^2/12 + (r^2 - g^2/12) w to the first term of its Fourier series, w = exp(-2 pi^2 v/g^2):
        what happens to x itself, r, as long as e is small, and a uniform error beyond.
        Where x saturates, its own error is cut off with it.
        """
        if format.digits >= MOST_DIGITS and format.highest is not None:
            return s
        kept = x if mode == "stochastic" else rounder(format, mode)(x)
        apart = kept - x
        gap = spacing(x, format)
        even, exact = _moments(apart, gap, x, mode, format)
        if s is None:
            added = exact
        else:
            memory = torch.exp(-2 * math.pi**2 * s / gap.square().clamp_min(TINY))
            added = torch.where(gap > 0, even + (exact - even) * memory, 0.0)
        over = x.abs() > format.largest
        total = torch.where(over, apart.square(), added if s is None else added + s)
        masks = ~(x.abs() < _mask(format))
        return torch.where(masks, 0.0 if s is None else s, total).nan_to_num(math.inf, math.inf)

    def ends(self, x: Tensor, s: ErrorState) -> tuple[Tensor, Tensor]:
        return x, x

    def store(
        self, x: Tensor, kept: Tensor, s: ErrorState, format: AnyFormat, mode: str
    ) -> ErrorState:
        return add_variances(s, (kept - x).square())

    def spread(self, s: ErrorState, like: Tensor) -> Tensor:
        return torch.zeros_like(like) if s is None else s.clamp_min(0).sqrt()


TINY = 1e-300


def _moments(
    apart: Tensor, gap: Tensor, x: Tensor, mode: str, format: Format
) -> tuple[Tensor, Tensor]:
    """Return the mean square of the rounding error of a spread-out value, and of this value."""
    square = gap.square()
    if mode in ("nearest", "away"):
        return square / 12, apart.square()
    if mode == "stochastic":
        below = x - rounder(format, "down")(x)
        return square / 6, below * (gap - below).clamp_min(0)
    return square / 3, apart.square()


class BoundAlgebra(Algebra):
    """Rigorous: every value lies within its bound, second order and held arithmetic included."""

    power = 1

    def through(self, x: Tensor, y: Tensor, s: Tensor, f: Map, function: Function) -> Tensor:
        if function.bend is None:
            within = torch.maximum((f(x + s) - y).abs(), (y - f(x - s)).abs())
        else:
            within = function.slope(x, y).abs() * s + (function.bend / 2) * s.square()
            within = torch.minimum(within.nan_to_num(math.inf, math.inf), function.steep * s)
        return _never(within, s)

    def divisor(self, x: Tensor, s: ErrorState) -> Tensor:
        return x.abs() if s is None else (x.abs() - s).clamp_min(0)

    def slack(self, terms: int | float, size: Callable[[], Tensor]) -> ErrorState:
        off = terms * self.unit
        if off >= 1:
            return torch.full_like(size(), math.inf)
        # Below the normal numbers of float32 a result may be gone.
        return size().abs() * (off / (1 - off)) + max(terms, 1) * self.unit * 2.0**-100

    def round(self, x: Tensor, s: ErrorState, format: Format, mode: str) -> ErrorState:
        """Return how far a rounded result may be off.

        Rounding keeps order, so that the ends of the interval say where a result may be.
        """
        if format.digits >= MOST_DIGITS and format.highest is not None:
            # float64 itself, in which the masks of code stand at the end of the range.
            return s
        low, high = _directions(mode)
        below, above = self.ends(x, s)
        most = _spare(above, format, high) - x
        least = x - _spare(below, format, low)
        within = torch.maximum(most.abs(), least.abs())
        before = torch.zeros_like(x) if s is None else s
        # What is a mask wherever it lies within its bound is left as it is.
        kept = (x.abs() - before >= _mask(format)) | ~x.isfinite()
        return torch.where(kept, before, within).nan_to_num(math.inf, math.inf)

    def ends(self, x: Tensor, s: ErrorState) -> tuple[Tensor, Tensor]:
        reach = torch.zeros_like(x) if s is None else _reach(x, s)
        return x - reach, x + reach

    def store(
        self, x: Tensor, kept: Tensor, s: ErrorState, format: AnyFormat, mode: str
    ) -> ErrorState:
        """Return the bound behind a storage format.

        An element's error is a share of the largest size that shares its scale, here of all.
        """
        if isinstance(format, Format):
            return self.round(x, s, format, mode)
        peak = (x.abs() if s is None else x.abs() + s).amax()
        off = peak * (_share(format) * ROOM) + 2.0**-120
        return add_variances(s, torch.full_like(x, 1.0) * off)

    def spread(self, s: ErrorState, like: Tensor) -> Tensor:
        return torch.zeros_like(like) if s is None else s


def _share(format: Integer | Scaled | Block) -> float:
    """Return the largest error over the largest size of a group or block, in any mode."""
    if isinstance(format, Integer):
        # One step, and for a zero point half a step more.
        return 1 / format.steps if format.symmetric else 1.5 * 2 / format.steps
    if isinstance(format, Scaled):
        return 2 * format.element.unit
    if format.scale != "power of two":
        # The scale of a block is off by 2^-4 at most; a block that is small may vanish.
        return 1 + 2.0**-3
    element = format.element
    assert element.highest is not None
    return max(2 * element.unit, 2 - element.largest / 2.0**element.highest)


def algebra(kind: StateKind, wide: torch.dtype) -> Algebra:
    """Return the algebra of a kind of spread, for results made in a wide dtype."""
    # The values that a bound stands beside are float64 themselves, and no better than that.
    unit = 2.0**-24 * (1 + 2.0**-10) if wide == torch.float32 else 2.0**-51
    return VarianceAlgebra(unit) if kind == "variance" else BoundAlgebra(unit)


def spacing(x: Tensor, format: Format) -> Tensor:
    """Return the gap between neighbours of the format at x; 0 for 0 in an unlimited one.

    Source: ieee19, section 3.3.
    """
    exponent = torch.frexp(x).exponent.to(x.dtype) - 1
    if format.lowest is not None:
        exponent = torch.where(x == 0, format.lowest, exponent.clamp_min(format.lowest))
    gap = torch.exp2(exponent - (format.digits - 1))
    return gap if format.lowest is not None else torch.where(x == 0, 0.0, gap)


def add_variances(*parts: ErrorState) -> ErrorState:
    """Return the sum of spreads, where None counts as nothing."""
    total: ErrorState = None
    for part in parts:
        if part is not None:
            total = part if total is None else total + part
    return total


def _never(within: Tensor, s: Tensor) -> Tensor:
    """Return the spread, 0 where the value is exact, also where a derivative is infinite.

    What is undefined is inf.
    """
    return torch.where(s == 0, 0.0, within).nan_to_num(math.inf, math.inf)


def _reach(x: Tensor, s: Tensor) -> Tensor:
    """Return a little more than s, for the rounding of x + s; 0 where x is exact."""
    return torch.where(s == 0, 0.0, s * ROOM + x.abs() * 2.0**-52)


def _directions(mode: str) -> tuple[str, str]:
    """Return the modes that take the ends of an interval furthest."""
    return ("down", "up") if mode == "stochastic" else (mode, mode)


def _mask(format: Format) -> float:
    return math.inf if format.name in SPANNING else MASK


def _spare(x: Tensor, format: Format, mode: str) -> Tensor:
    return torch.where(x.abs() < _mask(format), rounder(format, mode)(x), x)
