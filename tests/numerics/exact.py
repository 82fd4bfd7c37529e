"""Rounding as the standard words it, one number at a time, in fractions."""

import math
from fractions import Fraction
from functools import cache

from layerlab.numerics.formats.formats import Format

# Exponent of the smallest positive number, and largest exponent, of what holds the numbers.
CARRIERS = {"float32": (-149, 127), "float64": (-1074, 1023)}


@cache
def neighbours(size: Fraction, format: Format, carrier: str) -> tuple[Fraction, Fraction]:
    """The numbers of the format, without an upper limit, at and around a positive number."""
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    if format.lowest is not None:
        exponent = max(exponent, format.lowest)
    gap = Fraction(2) ** max(exponent - format.digits + 1, CARRIERS[carrier][0])
    below = size // gap * gap
    return below, below if below == size else below + gap


def rounded(value: float, format: Format, mode: str, carrier: str) -> float:
    """One number rounded: nearest, away, zero, up or down."""
    if math.isnan(value) or value == 0:
        return value
    sign = math.copysign(1.0, value)
    special = {"inf": math.inf, "nan": math.nan, "saturate": largest(format, carrier)}
    over = special[format.overflow]
    if math.isinf(value):
        return math.copysign(over, sign)
    size = abs(Fraction(value))
    below, above = neighbours(size, format, carrier)
    outward = {"up": sign > 0, "down": sign < 0, "zero": False}.get(mode)
    if outward is None:
        middle = (below + above) / 2
        gap = above - below
        even = gap == 0 or (below / gap) % 2 == 0
        outward = size > middle or (size == middle and (mode == "away" or not even))
    found = above if outward else below
    if found <= largest(format, carrier):
        return math.copysign(float(found), sign)
    directed = {"up": sign > 0, "down": sign < 0, "zero": False}.get(mode, True)
    return math.copysign(over if directed else largest(format, carrier), sign)


def largest(format: Format, carrier: str) -> float:
    """The largest number of the format that the carrier holds."""
    most, digits = CARRIERS[carrier][1], {"float32": 24, "float64": 53}[carrier]
    if format.highest is not None and format.highest <= most and format.digits <= digits:
        return format.largest
    highest = most if format.highest is None else min(format.highest, most)
    return math.ldexp(2.0 - 2.0 ** (1 - min(format.digits, digits)), highest)


def values(format: Format) -> list[float]:
    """Every finite number of a small format that is not negative, in order."""
    assert format.lowest is not None and format.highest is not None, "small formats have limits"
    gap, hidden = 2.0 ** (format.lowest - format.digits + 1), 2 ** (format.digits - 1)
    found = [k * gap for k in range(hidden)]
    for exponent in range(format.highest - format.lowest + 1):
        found += [k * gap * 2.0**exponent for k in range(hidden, 2 * hidden)]
    return [value for value in found if value <= format.largest]
