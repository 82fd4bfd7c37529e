"""Statistics of draws: what is drawn of a distribution, slopes, and intervals by resampling.

Errors of deep stacks have heavy tails: their mean belongs to a few draws. Every number that decides
a verdict therefore carries a 95 % interval from resampled draws (percentiles of the bootstrap).
Few draws resample too narrowly, and there the percentiles lie farther out (`_widen`): of the means
of 6 to 29 normal draws it covers 93 to 95 %, of medians 95 to 98. With heavy tails it stays too
narrow: of the means of 6 to 29 lognormal draws it covers 83 to 88 %, of 30 to 64 86 to 91. Where
draws are so few that it could not have its level it has no ends, and decides nothing.
A largest value has none: no resampled one is above it, and `maximum` gives it alone.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pandas as pd

# For the set-up of a study whose thresholds were not there before its numbers.
LOOKED = (
    "What the claims of our own ask for was set after a first look at few draws; the number stands "
    "beside each, for whoever would ask for another."
)
ROUNDS = 400
MANY = 30  # draws from which on percentiles are taken as they are
WIDEST = 8  # times as many rounds, at most, where percentiles lie farther out
AT_ONCE = 2**17  # numbers that are resampled together: they fit a core's cache
LOW, HIGH = 2.5, 97.5
DrawTable = np.ndarray
Coordinates = Sequence[float | int] | DrawTable
# Of all values of some draws, as np.mean and np.median are.
Statistic = Callable[[DrawTable], Any]
Key = TypeVar("Key")


@dataclass(frozen=True)
class Interval:
    """A number and its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        # Plus 0: no zero has a sign.
        value, low, high = (f"{one + 0:.3g}" for one in (self.value, self.low, self.high))
        # An interval of which no digit differs would only say the number three times.
        return value if value == low == high else f"{value} ({low} to {high})"


def describe_intervals(found: Mapping[str, Interval]) -> str:
    """Return numbers with their intervals, each with the name of what it is of."""
    return ", ".join(f"{one} ({name})" for name, one in found.items())


@dataclass(frozen=True)
class LineFit:
    """A least-squares line, and the share of the variance that it explains."""

    slope: float
    start: float
    explained: float


def line(x: Coordinates, y: Coordinates) -> LineFit:
    """Fit the least-squares line through points; points that are not finite are left out."""
    across, up = np.asarray(x, float), np.asarray(y, float)
    kept = np.isfinite(across) & np.isfinite(up)
    across, up = across[kept], up[kept]
    slope, start = np.polyfit(across, up, 1)
    rest = ((up - start - slope * across) ** 2).sum()
    total = ((up - up.mean()) ** 2).sum()
    return LineFit(float(slope), float(start), 1 - float(rest / total) if total > 0 else 1.0)


def mean(values: DrawTable) -> DrawTable:
    """Return the mean over the draws, the first axis."""
    return values.mean(0)


def median(values: DrawTable) -> DrawTable:
    """Return the median over the draws, the first axis."""
    return np.median(values, axis=0)


def ratio_of_medians(pairs: DrawTable, axis: int = 0) -> DrawTable:
    """Return the median of the first of each pair over that of the second."""
    pooled = pairs.reshape(*pairs.shape[:axis], -1, 2)
    first, second = np.moveaxis(np.median(pooled, axis=axis), -1, 0)
    return first / second


def bootstrap(
    values: DrawTable,
    number: Statistic,
    seed: int = 0,
    rounds: int = ROUNDS,
    comparisons: int = 1,
) -> Interval:
    """Return a statistic of draws (the first axis) with its bootstrap interval.

    Where it is NaN so is the interval, which rounds without those draws would not tell. Of fewer
    than 1 + log2(comparisons / 0.05) draws it reaches from minus to plus infinity: no resampled
    number lies beyond them, and once in 2^(draws - 1) times all lie on one side of their median.

    Args:
        comparisons: intervals that are to be right together (Bonferroni): each is wider for it,
            and takes as many times the rounds, so that its ends rest on as many of them.
    """
    value = float(number(values))
    if np.isnan(value):
        return Interval(value, value, value)
    count = len(values)
    if 2.0 ** (1 - count) > (100 - HIGH + LOW) / 100 / comparisons:
        return Interval(value, -math.inf, math.inf)
    tail = LOW / comparisons
    if count < MANY:
        tail = _widen(tail, count)
        rounds = math.ceil(rounds * min(WIDEST, LOW / comparisons / tail))
    generator = np.random.default_rng(seed)
    drawn = generator.integers(0, count, (rounds * comparisons, count))
    found = _each_round(values, number, drawn)
    low, high = np.nanpercentile(found, [tail, 100 - tail])
    return Interval(value, float(low), float(high))


def _widen(tail: float, count: int) -> float:
    """Return the percentile, of few draws, at which an interval ends that is to leave a tail out.

        tail' = Phi(sqrt(n / (n - 1)) t_{n - 1}(tail))

    What is resampled spreads as the draws do about their own mean, sqrt((n - 1) / n) too little,
    and by an error that n draws tell as Student's t has it and not the normal distribution. Of
    means of normal draws the interval is that of a t-test, and it stays inside of what was drawn.

    Source: hesterberg15, the expanded percentile interval.

    Args:
        tail: in percent.

    Example:
        >>> round(_widen(2.5, 6), 2), round(_widen(2.5, 1000), 2)
        (0.24, 2.48)
    """
    from scipy.special import ndtr, stdtrit  # all of scipy.stats would be loaded for it

    score = float(stdtrit(count - 1, tail / 100))
    return 100 * float(ndtr(score * (count / (count - 1)) ** 0.5))


def _each_round(values: DrawTable, number: Statistic, drawn: DrawTable) -> DrawTable:
    """Return a statistic of the draws that each round (a row) has; usual ones of many at once."""
    in_order = values[drawn[0]].flags.c_contiguous  # else a sum is of another order
    parts = np.array_split(
        drawn, min(-(-drawn.size * (values.size // len(values)) // AT_ONCE), len(drawn))
    )
    if number is ratio_of_medians:
        return np.concatenate([number(values[part], axis=1) for part in parts])
    if number not in (np.mean, np.median) or not in_order:
        return np.array([number(values[one]) for one in drawn])
    return np.concatenate([number(values[part].reshape(len(part), -1), axis=1) for part in parts])


def bootstrap_each(
    values: Mapping[Key, DrawTable],
    number: Statistic,
    seed: int = 0,
    comparisons: int | None = None,
) -> dict[Key, Interval]:
    """Return a statistic of several sets of draws, each with its interval.

    The intervals hold together, unless `comparisons` says how many others there are.
    """
    count = len(values) if comparisons is None else comparisons
    return {key: bootstrap(one, number, seed, comparisons=count) for key, one in values.items()}


def maximum(values: DrawTable) -> Interval:
    """Return the largest of some numbers, ignoring NaN, without an interval.

    The top of this module says why.
    """
    most = float(np.nanmax(values))
    return Interval(most, most, most)


def mean_of_groups(values: DrawTable, number: Statistic, groups: int) -> Interval:
    """Return the mean of a number over disjoint groups of draws, with Student's interval.

    For what hangs on the largest draws, of which resampling knows no larger ones: the number is
    that of so many draws as a group has.
    """
    from scipy.stats import t

    found = np.array([number(one) for one in np.array_split(values, groups)])
    half = t.ppf(HIGH / 100, groups - 1) * found.std(ddof=1) / groups**0.5
    return Interval(float(found.mean()), float(found.mean() - half), float(found.mean() + half))


def resting(values: DrawTable) -> float:
    """Return the effective number of draws that a mean rests on, (sum x)^2 / sum x^2.

    That is all of them where they agree.

    Example:
        >>> resting(np.array([1.0, 1.0, 1.0, 1.0])), round(resting(np.array([1.0, 1.0, 1e6])), 3)
        (4.0, 1.0)
    """
    return float(values.sum() ** 2 / (values**2).sum())


def summary(values: DrawTable, labels: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row on how a quantity is distributed over the draws.

    Infinite values count for the quantiles; NaN is no reading, and no draw of the row.
    """
    present = values[~np.isnan(values)]
    finite = present[np.isfinite(present)]
    low, middle, high = (
        np.percentile(present, [5, 50, 95], method="nearest") if len(present) else [np.nan] * 3
    )
    return {
        **labels,
        "mean": float(finite.mean()) if len(finite) else np.nan,
        "median": float(middle),
        "p5": float(low),
        "p95": float(high),
        "largest": float(finite.max()) if len(finite) else np.nan,
        "infinite": len(present) - len(finite),
        "draws": len(present),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return the rows as a frame."""
    return pd.DataFrame([dict(row) for row in rows])


def bins(values: DrawTable, count: int = 40) -> tuple[list[float], list[int]]:
    """Return a histogram of the decimal logarithm: the middles and counts of its bins."""
    logs = np.log10(values[np.isfinite(values) & (values > 0)])
    if not len(logs):
        return [], []
    counts, edges = np.histogram(logs, bins=count)
    middles = 10 ** ((edges[:-1] + edges[1:]) / 2)
    return [float(x) for x in middles], [int(n) for n in counts]


def tau(one: DrawTable, two: DrawTable) -> DrawTable:
    """Return Kendall's tau of rows of numbers: concordant less discordant pairs, as a share.

    Example:
        >>> round(float(tau(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0]))), 3)
        0.333
    """
    first, second = np.triu_indices(one.shape[-1], k=1)
    signs = [np.sign(rows[..., first] - rows[..., second]) for rows in (one, two)]
    return np.asarray((signs[0] * signs[1]).mean(-1))


def over_seeds(ours: DrawTable, theirs: DrawTable, comparisons: int = 1) -> Interval:
    """Return the mean difference of two arms with its interval, paired by seed.

    Args:
        comparisons: that are to be right together.
    """
    from layerlab.experiments.statistics.differences import Level, paired_difference

    level = Level(confidence=1 - 0.05 / comparisons)
    found = paired_difference(ours.tolist(), theirs.tolist(), level)
    assert found.mean is not None
    # Seeds that agree to the last bit leave no spread.
    low, high = (found.mean if end is None else end for end in (found.low, found.high))
    return Interval(found.mean, low, high)


def ratio_over_seeds(ours: DrawTable, theirs: DrawTable, comparisons: int = 1) -> Interval:
    """Return the geometric mean of the quotients of two arms with its interval, paired by seed."""
    found = over_seeds(np.log(ours), np.log(theirs), comparisons)
    value, low, high = np.exp([found.value, found.low, found.high]).tolist()
    return Interval(value, low, high)
