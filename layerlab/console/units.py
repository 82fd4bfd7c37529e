"""Large numbers and times as people read them."""

import math
from collections.abc import Sequence

_PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")
SHORT = 9.95  # seconds; below it two digits are more than a clock shows


def amount(value: int | float | None, unit: str = "") -> str:
    """Format a number with three digits and a unit prefix.

    Example:
        >>> amount(1.8e17, "FLOP"), amount(51_650_000), amount(None)
        ('180 PFLOP', '51.6 M', '?')
    """
    if value is None or not math.isfinite(value):
        return "?"
    power = 0
    while abs(value) >= 999.5 and power < len(_PREFIXES) - 1:
        value, power = value / 1000, power + 1
    digits = 0 if abs(value) >= 99.95 or (power == 0 and value == int(value)) else 1
    digits = 2 if not digits == 0 and abs(value) < 9.995 else digits
    return f"{value:.{digits}f} {_PREFIXES[power]}{unit}".rstrip()


def difference(value: int | float, places: int) -> str:
    """Format a difference with its sign: so many decimals, or two digits where they say only 0.

    Example:
        >>> difference(0.5, 2), difference(-0.0000123, 4), difference(-0.0, 2)
        ('+0.50', '-1.2e-05', '+0.00')
    """
    digits = f".{places}f"
    if value and not float(format(value, digits)):
        digits = ".2g"
    return format(value + 0, f"+{digits}")


def duration(seconds: int | float | None) -> str:
    """Format seconds as hours, minutes and seconds, with days if any.

    Example:
        >>> duration(5025), duration(62.4), duration(200_000), duration(0.25)
        ('1:23:45', '1:02', '2 days 7:33:20', '0.25 s')
    """
    if seconds is None or not math.isfinite(seconds):
        return "?"
    if 0 < seconds < SHORT:
        return _in_seconds(seconds)
    rounded = max(0, round(seconds))
    days, rest = divmod(rounded, 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    clock = f"{hours}:{minutes:02}:{rest:02}" if hours or days else f"{minutes}:{rest:02}"
    return f"{days} day{'s' if days > 1 else ''} {clock}" if days else clock


def durations(seconds: Sequence[int | float | None]) -> list[str]:
    """Format the durations of a column alike: in seconds if some are short.

    Example:
        >>> durations([9.5, 11.2, None]), durations([62.4, 11.2])
        (['9.5 s', '11 s', '?'], ['1:02', '0:11'])
    """
    numbers = [one for one in seconds if one is not None and math.isfinite(one)]
    if not numbers or min(numbers) >= SHORT:
        return [duration(one) for one in seconds]
    return [
        duration(one) if one is None or not math.isfinite(one) else _in_seconds(one)
        for one in seconds
    ]


def _in_seconds(seconds: int | float) -> str:
    return f"{seconds:.2g} s" if seconds < SHORT else f"{seconds:,.0f} s"
