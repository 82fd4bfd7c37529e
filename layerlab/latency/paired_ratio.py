"""Ratio of two times, paired by repetition, with an interval."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Spread:
    """Numbers of several repetitions, by their median and quartiles.

    Attributes:
        median: of them.
        low: a quarter are smaller.
        high: a quarter are larger.
        values: all, in the order in which they were taken.
    """

    median: float
    low: float
    high: float
    values: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers."""
        return {**asdict(self), "values": list(self.values)}


def spread(values: Sequence[float]) -> Spread:
    """Return the median and the quartiles.

    Example:
        >>> found = spread([3.0, 1.0, 2.0, 5.0, 4.0])
        >>> found.low, found.median, found.high
        (2.0, 3.0, 4.0)
    """
    if len(values) == 1:
        return Spread(values[0], values[0], values[0], tuple(values))
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(middle, low, high, tuple(values))


@dataclass(frozen=True)
class Ratio:
    """The median of paired ratios.

    Attributes:
        median: below 1, the first is faster.
        low: of its interval; None where there are too few pairs for one.
        high: of it.
        pairs: how many.
    """

    median: float
    low: float | None
    high: float | None
    pairs: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers."""
        return asdict(self)

    def summary(self) -> str:
        """Return the ratio and its interval as a table shows them."""
        if self.low is None or self.high is None:
            return f"{self.median:.3f} (no interval from {self.pairs} pairs)"
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"


def paired_ratio(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """Return the median of above_i / below_i, with an interval from order statistics.

    [r_(k), r_(n+1-k)],   k the largest with P(Binomial(n, 1/2) < k) <= (1 - confidence) / 2

    It holds the median of all such ratios with a probability of at least 0.95, whatever their
    distribution; fewer than six pairs give none.

    Example:
        >>> paired_ratio([1.0, 2.0, 3.0], [2.0, 2.0, 2.0])
        Ratio(median=1.0, low=None, high=None, pairs=3)
    """
    found = sorted(one / other for one, other in zip(above, below, strict=True))
    rank = _rank(len(found))
    low, high = (found[rank - 1], found[-rank]) if rank else (None, None)
    return Ratio(statistics.median(found), low, high, len(found))


def _rank(count: int) -> int:
    """Return which of the ordered values begins the interval, from 1; 0 where none does."""
    from scipy.stats import binom

    return int(binom.ppf((1 - CONFIDENCE) / 2, count, 0.5))
