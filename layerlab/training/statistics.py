"""Differences between arms, judged by their seeds: intervals, tests, and what they could not see.

Lower nats are better, so a negative difference speaks for the arm. One pair has no interval.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from layerlab import UserError

# Beyond this many seeds nobody trains; the search for a number of them ends here.
MOST_SEEDS = 1_000_000
Kind = Literal["paired", "welch"]
Number = int | float


@dataclass(frozen=True, kw_only=True)
class Level:
    """How sure a comparison has to be.

    Attributes:
        confidence: of intervals; an arm differs where its corrected p is below 1 - confidence.
        power: at which the smallest detectable effect and the seeds that it takes are stated.
        comparisons: arms that are held against the baseline. What can be detected is stated at the
            level that Holm asks of the smallest p, so that it does not promise too much.
    """

    confidence: float = 0.95
    power: float = 0.8
    comparisons: int = 1

    @property
    def alpha(self) -> float:
        """The probability of a false alarm, of all comparisons together."""
        return 1 - self.confidence

    @property
    def strictest(self) -> float:
        """The level that Holm asks of the smallest p."""
        return self.alpha / max(1, self.comparisons)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """An arm against the baseline.

    Attributes:
        kind: `paired` by seed; `welch` where the two sides share no seed.
        n: pairs; with `welch` the smaller side's seeds.
        mean: arm - baseline; None without any pair.
        sd: of the differences; with `welch` the one that gives the same standard error at n seeds
            a side. None for fewer than two.
        low: of the interval; None where there is none.
        high: of the interval.
        p: of the two-sided t-test, before any correction.
        detectable: smallest true effect that this many seeds would find at the power.
        needed: seeds at which an effect as large as the observed one would be found at the power.
        flat: whether every seed shows exactly the same difference, so that no spread can be told.
    """

    kind: Kind
    n: int
    mean: float | None = None
    sd: Number | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    detectable: float | None = None
    needed: int | None = None
    flat: bool = False

    @property
    def identical(self) -> bool:
        """Whether both sides ended at the same numbers, seed by seed."""
        return self.kind == "paired" and self.n > 0 and self.mean == 0 and (self.sd or 0) == 0


def against(
    arm: Mapping[int, float], baseline: Mapping[int, float], level: Level | None = None
) -> Difference:
    """The difference of two arms whose values are given by seed.

    Paired over the seeds that both have; only where they have none in common, unpaired.
    """
    shared = sorted(arm.keys() & baseline.keys())
    if shared or not arm or not baseline:
        pairs = [arm[seed] for seed in shared], [baseline[seed] for seed in shared]
        return paired(*pairs, level)
    return welch(list(arm.values()), list(baseline.values()), level)


def paired(
    arm: Sequence[float], baseline: Sequence[float], level: Level | None = None
) -> Difference:
    """The paired t-test, its interval, and what it could have found.

    Example:
        >>> found = paired([1.0, 2.1, 3.0], [1.1, 2.2, 3.2])
        >>> round(found.mean, 3), round(found.p, 3), found.n
        (-0.133, 0.057, 3)
    """
    level = level or Level()
    differences = [one - other for one, other in zip(arm, baseline, strict=True)]
    n = len(differences)
    if n == 0:
        return Difference(kind="paired", n=0)
    mean = math.fsum(differences) / n
    if n == 1:
        return Difference(kind="paired", n=1, mean=mean)
    sd = deviation(differences)
    # What is left of equal differences after rounding is no spread.
    if sd <= _rounding(arm, baseline):
        same = mean if any(differences) else 0.0
        p = None if same else 1.0
        return Difference(kind="paired", n=n, mean=same, sd=0.0, p=p, flat=True)
    return _tested(
        "paired", n, mean, _Error(sd / math.sqrt(n), n - 1, lambda m: (sd, m - 1)), level
    )


def welch(
    arm: Sequence[float], baseline: Sequence[float], level: Level | None = None
) -> Difference:
    """Welch's t-test of two arms without a seed in common, with Satterthwaite's degrees of freedom.

    What each seed has to itself stays in the differences: it finds less than pairs do.
    """
    level = level or Level()
    sizes = len(arm), len(baseline)
    if not all(sizes):
        return Difference(kind="welch", n=0)
    mean = math.fsum(arm) / sizes[0] - math.fsum(baseline) / sizes[1]
    if min(sizes) < 2:
        return Difference(kind="welch", n=1, mean=mean)
    spreads = deviation(arm) ** 2, deviation(baseline) ** 2
    if math.sqrt(sum(spreads)) <= _rounding(arm, baseline):
        return Difference(kind="welch", n=min(sizes), mean=mean, sd=0.0, flat=True)
    error, freedom = _satterthwaite(spreads, sizes)

    def at(n: int) -> tuple[Number, Number]:
        return math.sqrt(sum(spreads)), _satterthwaite(spreads, (n, n))[1]

    return _tested("welch", min(sizes), mean, _Error(error, freedom, at), level)


def deviation(values: Sequence[float]) -> float:
    """The standard deviation of a sample, with n - 1."""
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def holm(raw: Sequence[float]) -> list[float]:
    """Holm's step-down correction: p of each arm, for all arms together.

    corrected_(i) = max over j <= i of min(1, (k - j + 1) p_(j)), in ascending order.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    corrected = [0.0] * len(raw)
    reached = 0.0
    for rank, index in enumerate(sorted(range(len(raw)), key=raw.__getitem__)):
        reached = max(reached, min(1.0, (len(raw) - rank) * raw[index]))
        corrected[index] = reached
    return corrected


def power(shift: Number, freedom: Number, alpha: Number) -> float:
    """Probability that a two-sided t-test rejects, where the truth is `shift` standard errors."""
    from scipy.special import nctdtr, stdtrit

    edge = -float(stdtrit(freedom, alpha / 2))
    below, within = (float(nctdtr(freedom, abs(shift), place)) for place in (-edge, edge))
    if math.isnan(within):  # the fast form gives up where the slow one does not
        from scipy.stats import nct

        within = float(nct.cdf(edge, freedom, abs(shift)))
    # Either form gives nan for the far tail, where it is below rounding.
    return 1 - within + (0.0 if math.isnan(below) else below)


def detectable(error: Number, freedom: Number, level: Level) -> float:
    """Smallest true effect that is found at the power: the noncentral t, solved.

    Args:
        error: standard error of the difference.
        freedom: degrees of it.
    """
    return error * _shift(freedom, level.strictest, level.power)


@cache
def _shift(freedom: Number, alpha: float, wanted: float) -> float:
    """The truth, in standard errors, that is found with this probability."""
    from scipy.optimize import brentq

    def missing(shift: Number) -> float:
        return power(shift, freedom, alpha) - wanted

    most = 1.0
    while missing(most) < 0:
        most *= 2
    return float(brentq(missing, 0.0, most, xtol=1e-12, rtol=1e-12))


def needed(effect: Number, sd: Number, level: Level, start: int = 2) -> int | None:
    """Pairs at which a paired test finds this effect at the power; None beyond a million.

    Raises:
        UserError: an effect of 0, which no number of seeds finds.
    """
    if effect == 0:
        raise UserError("an effect of 0 takes no number of seeds; expected one other than 0")
    return _needed(effect, lambda n: (sd, n - 1), level, start)


@dataclass(frozen=True)
class _Error:
    """A standard error, its degrees of freedom, and sd and degrees at another number of seeds."""

    size: Number
    freedom: Number
    at: Callable[[int], tuple[Number, Number]]


def _tested(kind: Kind, n: int, mean: float, error: _Error, level: Level) -> Difference:
    from scipy.stats import t

    half = float(t.isf(level.alpha / 2, error.freedom)) * error.size
    return Difference(
        kind=kind,
        n=n,
        mean=mean,
        sd=error.size * math.sqrt(n),
        low=mean - half,
        high=mean + half,
        p=2 * float(t.sf(abs(mean) / error.size, error.freedom)),
        detectable=detectable(error.size, error.freedom, level),
        needed=_needed(mean, error.at, level, 2) if mean else None,
    )


def _rounding(arm: Sequence[float], baseline: Sequence[float]) -> float:
    return 8 * math.ulp(max(map(abs, [*arm, *baseline])))


def _needed(
    effect: Number, at: Callable[[int], tuple[Number, Number]], level: Level, start: int
) -> int | None:
    def enough(n: int) -> bool:
        sd, freedom = at(n)
        shift = math.inf if sd == 0 else abs(effect) * math.sqrt(n) / sd
        return sd == 0 or power(shift, freedom, level.strictest) >= level.power

    low, high = max(2, start) - 1, max(2, start)
    while not enough(high):
        low, high = high, 2 * high
        if high > MOST_SEEDS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _satterthwaite(spreads: tuple[float, float], sizes: tuple[int, int]) -> tuple[Number, Number]:
    """Standard error and degrees of freedom of a difference of two means."""
    parts = [spread / size for spread, size in zip(spreads, sizes, strict=True)]
    total = sum(parts)
    below = sum(part**2 / (size - 1) for part, size in zip(parts, sizes, strict=True))
    return math.sqrt(total), total**2 / below
