"""Curves of runs, thinned to what a page can draw, on updates that all runs share.

Seeds of one arm are drawn as a band, which needs their points at the same updates: the updates of
all runs together are cut into bins, and each run keeps one point a bin.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from layerlab.records.json_values import Json
from layerlab.report.views.inspection.bounds import finite

# Points of a run's curve, at most and at least; and of all curves of one kind together.
MOST, LEAST, BUDGET = 400, 20, 36_000
PLACES = ("tokens", "flops", "seconds")
DIGITS = 5
# A place that is the same multiple of the updates all along is sent as that number.
PROPORTIONAL = 1e-6


def curve_columns(curves: Sequence[Mapping[str, Any]], kind: str, values: Sequence[str]) -> Json:
    """Return each run's curve as columns, by the place of the run among `curves`.

    A thinned curve holds the means of its bins, each at the last update of its bin.

    Args:
        curves: of each run, by kind, the columns `update`, places and values.
        kind: train or evaluation.
        values: the columns that are read off the curve.
    """
    tables = {str(i): _table(one.get(kind), values) for i, one in enumerate(curves)}
    tables = {index: table for index, table in tables.items() if len(table)}
    if not tables:
        return {"thinned": False, "runs": {}}
    updates = np.unique(np.concatenate([table["update"] for table in tables.values()]))
    most = min(MOST, max(LEAST, BUDGET // len(tables)))
    ends = bins(updates, most)
    return {
        "thinned": len(updates) > most,
        "runs": {
            index: _columns(table, ends[np.searchsorted(updates, table["update"])], values)
            for index, table in tables.items()
        },
    }


def paired_columns(curves: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[Json]:
    """Return the differences of each arm along the run, thinned, and to which arm each is.

    Args:
        curves: of each arm, with its points.
        names: of all arms; arms are told by their places among them.
    """
    found = []
    for one in curves:
        points = [point for point in one.get("points") or () if isinstance(point, Mapping)]
        step = -(-len(points) // MOST) or 1
        # Counted from the end, so that the last point stays.
        kept = points[::-1][::step][::-1]
        if kept and str(one.get("arm")) in names:
            by = str(one.get("by", "tokens"))
            # Where all seeds begin at the same numbers, the band has no width.
            flat = [
                point.get("difference") == 0 and (short(point.get("n")) or 0) > 1 for point in kept
            ]
            series = {
                key: [
                    0 if same and point.get(key) is None else short(point.get(key))
                    for point, same in zip(kept, flat, strict=True)
                ]
                for key in ("difference", "low", "high")
            }
            labels = [short(point.get(by)) for point in kept]
            arms = {key: find_arm(one.get(key), names) for key in ("arm", "against")}
            found.append({**arms, "by": by, "place": labels, **series})
    return found


def find_arm(name: Any, names: Sequence[str]) -> int | None:
    """Return the place of an arm among all; None for a name that is none of theirs."""
    return names.index(str(name)) if str(name) in names else None


def bins(updates: np.ndarray, most: int) -> np.ndarray:
    """Return the bin of each update, named by the last update in it.

    The last is always kept.

    Example:
        >>> bins(np.array([10, 20, 30, 40, 50]), 2)
        array([20, 20, 50, 50, 50])
    """
    if len(updates) <= most:
        return updates
    ends = np.linspace(0, len(updates), most + 1).astype(int)[1:] - 1
    return updates[ends[np.searchsorted(ends, np.arange(len(updates)))]]


def shares(confidence: float, counts: Iterable[int]) -> dict[str, float]:
    """Return the half-width of the interval of a mean of n seeds, in standard errors."""
    from scipy import stats

    return {
        str(n): short(float(stats.t.ppf(0.5 + confidence / 2, n - 1)), 6) or 0.0
        for n in sorted(set(counts))
        if n > 1
    }


def short(value: Any, digits: int = DIGITS) -> float | int | None:
    """Round a number to few digits; None for whatever is not a finite number.

    Example:
        >>> short(3.14159265), short(2048.0), short(None), short(float("nan"))
        (3.1416, 2048, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    cut = float(f"{value:.{digits}g}")
    return int(cut) if cut.is_integer() and abs(cut) < 1e15 else cut


def quantity(value: Any, unit: str = "") -> str:
    """Write a large number with its prefix, or a dash where there is none.

    Example:
        >>> quantity(7_300_000), quantity(612e6, "B"), quantity(None)
        ('7.3 M', '612 MB', '–')
    """
    number = short(value, 3)
    if number is None:
        return "–"
    for prefix, size in (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(number) >= size:
            return f"{number / size:.3g} {prefix}{unit}"
    return f"{number:.3g} {unit}".rstrip()


def _table(columns: Any, values: Sequence[str]) -> pd.DataFrame:
    """Return the points of a curve by update; empty where the curve cannot be read."""
    given = columns if isinstance(columns, Mapping) else {}
    updates = given.get("update") or []
    names = ("update", *PLACES, *values)
    cells = {
        name: column if len(column := given.get(name) or []) == len(updates) else math.nan
        for name in names
    }
    table = pd.DataFrame(cells, index=range(len(updates)))
    table = table.assign(**{name: finite(table[name]) for name in names})
    table = table.dropna(subset=["update"])
    return table.drop_duplicates("update", keep="last").sort_values("update")


def _columns(points: pd.DataFrame, ends: np.ndarray, values: Sequence[str]) -> Json:
    groups = points.assign(bin=ends).groupby("bin", sort=True)
    found: Json = {"update": [short(float(n), 12) for n in groups["update"].last()]}
    for name in PLACES:
        found[name] = _place(groups[name].last(), found["update"])
    for name in values:
        found[name] = [short(float(v)) for v in groups[name].mean()]
    return found


def _place(column: pd.Series, updates: Sequence[Any]) -> list[Any] | float | int | None:
    """Return the column, or its ratio to the updates if constant, or None if it is unknown."""
    if column.isna().all():
        return None
    places, at = column.to_numpy(), np.array(updates, dtype=float)
    ratio = places[-1] / at[-1] if at[-1] else math.nan
    if np.allclose(places, ratio * at, rtol=PROPORTIONAL, atol=0):
        return short(float(ratio), 12)
    return [short(float(v)) for v in column]
