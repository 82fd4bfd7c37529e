"""Differences to the baseline as places on one scale, so that they are drawn without a script."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from layerlab.console.units import difference
from layerlab.records.json_values import Json
from layerlab.report.i18n.language import labels
from layerlab.report.views.curves import short

# An arm beyond this many times the middle one is drawn at the edge, with an arrow.
FAR = 6.0
TICKS = 5
ROOM = 1.06
# How a verdict is marked, by what it begins with.
TONES = ("baseline", "better", "worse")
# The other verdicts, and what stands in a sentence beside them.
WORDS = (
    *labels("better", "worse", "identical", "not distinguishable", "too few seeds", "nats"),
    *labels("{value} nats", "{value} bits per byte", "{value} nats per token", ", p = {value}"),
    *labels("not decided at this budget", "loss", "gradient"),
)


def forest(
    rows: Sequence[Mapping[str, Any]], baseline: str, order: Sequence[str], *, higher: bool = False
) -> Json:
    """Return the lines of the plot, the best first, and its scale's ticks in percent.

    Args:
        higher: whether more is better.
    """
    reach = _reach(rows, baseline)
    lines = [_line(row, row["arm"] == baseline, reach, order) for row in rows]
    sign = -1 if higher else 1
    lines.sort(key=lambda line: (line["difference"] is None, sign * (line["difference"] or 0.0)))
    return {
        "lines": lines,
        "zero": _percent(0.0, reach),
        "ticks": [
            {"at": _percent(value, reach), "text": format_signed(value)}
            for value in ticks_of(-reach, reach, TICKS)
        ],
        "clipped": any(line["clipped"] for line in lines),
        "cut": any(line["cut"] for line in lines),
    }


def tone(verdict: Any) -> str:
    """Return how a verdict is marked: baseline, better, worse, or unsure."""
    return next((word for word in TONES if str(verdict or "").startswith(word)), "unsure")


def format_signed(value: Any, width: Any = None) -> str:
    """Format a difference with its sign, a dash where there is none.

    Args:
        width: of its interval, which says how many digits mean anything.

    Example:
        >>> [format_signed(number) for number in (0.01234, -0.5, 0.0, None)]
        ['+0.01234', '-0.5', '0', '–']
        >>> format_signed(-0.0304, 0.01)
        '-0.0304'
    """
    number, about = short(value, 12), short(width)
    if number is None:
        return "–"
    if about:
        places = min(9, max(0, 2 - math.floor(math.log10(abs(about)))))
        return difference(number, places)
    return f"{number:+.4g}" if number else "0"


def ticks_of(low: float | int, high: float | int, most: int) -> list[float]:
    """Return round numbers from one end to the other, at most about so many.

    Example:
        >>> ticks_of(0, 150, 5)
        [0.0, 50.0, 100.0, 150.0]
    """
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * n for n in (1, 2, 5, 10) if power * n >= raw)
    return [round(step * n, 12) for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _reach(rows: Iterable[Mapping[str, Any]], baseline: str) -> float:
    """Return what the scale shows on either side of zero: all intervals but those of far arms."""
    found = [
        (abs(short(row.get("difference")) or 0.0), max(sizes))
        for row in rows
        if row["arm"] != baseline
        and (
            sizes := [
                abs(number)
                for key in ("difference", "low", "high")
                if (number := short(row.get(key))) is not None
            ]
        )
    ]
    ends = sorted(end for _, end in found)
    if not ends or not ends[-1]:
        return 1.0
    middle = ends[(len(ends) - 1) // 2] or ends[-1]
    return ROOM * max(end for size, end in found if size <= FAR * middle)


def _line(row: Mapping[str, Any], base: bool, reach: float, order: Sequence[str]) -> Json:
    difference = 0.0 if base else short(row.get("difference"))
    low, high = (None, None) if base else (short(row.get("low")), short(row.get("high")))
    ends = None if low is None or high is None else (low, high)
    # A range, as sigma is known to a range: what is surely found lies beyond its upper end.
    sizes = None if base else row.get("detectable")
    detectable = short(sizes[-1] if isinstance(sizes, list | tuple) else sizes)
    return {
        **row,
        "index": order.index(row["arm"]) if row["arm"] in order else 0,
        "tone": "baseline" if base else tone(row.get("verdict")),
        "difference": difference,
        "at": _percent(difference, reach),
        "from": _percent(ends[0], reach) if ends else None,
        "to": _percent(ends[1], reach) if ends else None,
        "blind": None
        if detectable is None
        else [_percent(-detectable, reach), _percent(detectable, reach)],
        "cut": detectable is not None and detectable > reach,
        "width": ends[1] - ends[0] if ends else None,
        "clipped": difference is not None and abs(difference) > reach,
    }


def _percent(value: float | int | None, reach: float) -> float | None:
    if value is None:
        return None
    return round(min(100.0, max(0.0, 50 + 50 * value / reach)), 2)
