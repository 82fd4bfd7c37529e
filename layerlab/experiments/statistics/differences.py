"""Differences between arms over seeds: intervals, tests, and the smallest detectable effect.

Lower nats are better, so a negative difference speaks for the arm. One pair has no interval.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Literal

import numpy as np

from layerlab.errors import UserError
from layerlab.experiments.statistics.joined_variance import (
    Range,
    Real,
    half_width,
    join,
    p_of,
    satterthwaite,
)

# Beyond this many seeds nobody trains; the search for a number of them ends here.
MOST_SEEDS = 1_000_000
TTestKind = Literal["paired", "welch", "moderated"]


@dataclass(frozen=True, kw_only=True)
class Level:
    """Confidence and power that a comparison asks for.

    Attributes:
        confidence: of intervals; an arm differs where its corrected p is below 1 - confidence.
        power: at which the smallest detectable effect and the seeds that it takes are stated.
        comparisons: tests that are corrected together. What can be detected is stated at the level
            that Holm asks of the smallest p, so that it does not promise too much.
        share: of alpha that the last look has.
    """

    confidence: float = 0.95
    power: float = 0.8
    comparisons: int = 1
    share: float = 1.0

    @property
    def alpha(self) -> float:
        """The probability of a false alarm, of all comparisons together."""
        return 1 - self.confidence

    @property
    def surely(self) -> float:
        """Confidence of sigma's interval: half of alpha, as its degrees are an estimate too."""
        return 1 - self.alpha / 2

    @property
    def strictest(self) -> float:
        """The level that Holm's correction asks of the smallest p."""
        return self.alpha * self.share / max(1, self.comparisons)


def check_confidence(confidence: float) -> None:
    """Refuse a confidence that means nothing.

    Raises:
        UserError: it is none between 0.5 and 1.
    """
    if not 0.5 < confidence < 1:
        raise UserError(f"--confidence is {confidence:g}; expected one between 0.5 and 1")


def check_margin(margin: float | None) -> None:
    """Refuse a margin within which nothing, or everything, lies.

    Raises:
        UserError: it is not above 0, or not finite.
    """
    if margin is not None and not 0 < margin < math.inf:
        raise UserError(f"--margin is {margin:g}; expected a number above 0")


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The difference of an arm to the baseline.

    Attributes:
        kind: `paired` by seed; `welch` where the two sides share no seed; `moderated` where the
            other arms of a comparison tell of the noise (`additive.Additive`).
        n: pairs; with `welch` the smaller side's seeds.
        mean: arm - baseline; None without any pair.
        error: standard error of the mean from seed to seed; None for fewer than two.
        freedom: degrees of it.
        text: standard error that the held-out text adds, and its degrees; None where it is not
            known, as runs kept no losses by block.
        line: of a forecast, standard error that sizes about their line add, and its degrees.
        flat: whether every seed shows exactly the same difference, so that no spread can be told.
        exact: whether equal values show that two arms compute the same, as losses in full precision
            do: counts and scores are equal by chance, too.
        level: how sure it has to be.
    """

    kind: TTestKind
    n: int
    mean: float | None = None
    error: float | None = None
    freedom: Real = 0
    text: Range | None = None
    line: Range | None = None
    flat: bool = False
    exact: bool = True
    level: Level = field(default_factory=Level)

    @property
    def identical(self) -> bool:
        """Return whether both arms ended at the same numbers, seed by seed."""
        return self.exact and self.kind == "paired" and self.mean == 0 and not self.error

    @cached_property
    def parts(self) -> list[Range]:
        """Variances of seeds, text and line with their degrees; none without a spread."""
        if self.error is None or self.flat:
            return []
        return [(self.error**2, self.freedom), *self._others]

    @cached_property
    def whole(self) -> Range | None:
        """Standard error of all parts together, with its degrees at the strictest level."""
        return join(self.parts, self.level.strictest) if self.parts else None

    @property
    def sd(self) -> float | None:
        """The standard deviation of the differences over seeds that fits the standard error."""
        return None if self.error is None else self.error * math.sqrt(self.n)

    def p_at(self, shift: float = 0.0) -> float | None:
        """Return the two-sided p-value of a true difference of `shift`, uncorrected."""
        if self.mean is None:
            return None
        if not self.parts:
            return float(self.mean == shift) if self.identical else None
        return p_of(self.parts, abs(self.mean - shift))

    @property
    def p(self) -> float | None:
        """The p-value of the two-sided t-test, before any correction."""
        return self.p_at()

    @cached_property
    def interval(self) -> Range | None:
        """The confidence interval; None where there is none."""
        if not self.parts or self.mean is None:
            return None
        half = half_width(self.parts, self.level.alpha)
        return self.mean - half, self.mean + half

    @property
    def low(self) -> float | None:
        """Lower end of the interval."""
        return self.interval[0] if self.interval else None

    @property
    def high(self) -> float | None:
        """The upper end of the interval."""
        return self.interval[1] if self.interval else None

    @cached_property
    def detectable(self) -> Range | None:
        """The range of the smallest true effect that so many seeds detect at the power.

        A range, as sigma is known to a range.
        """
        if self.whole is None:
            return None
        error, freedom = self.whole
        least, most = spread_limits(error, freedom, self.level.surely)
        return detectable(least, freedom, self.level), detectable(most, freedom, self.level)

    @cached_property
    def needed(self) -> tuple[int | None, int | None] | None:
        """Seeds at which an effect as large as the observed one is found at the power: a range.

        An end is None beyond a million: then no number of seeds does.
        """
        if self.whole is None or not self.mean or self.error is None:
            return None
        limits = spread_limits(self.error, self.freedom, self.level.surely)
        least, most = (required_seeds(self.mean, self._at(error), self.level) for error in limits)
        return least, most

    @property
    def limited_by_text(self) -> bool:
        """Whether no number of seeds is enough here, and some would be on endless text."""
        alone = replace(self, text=None).needed
        return self.needed is not None and self.needed[0] is None and alone != (None, None)

    def _at(self, error: float) -> Callable[[int], Range]:
        """Return standard error and its degrees at another number of seeds.

        The text stays as it is.
        """

        def at(n: int) -> Range:
            seeds = error**2 * self.n / n, self.freedom * (n - 1) / (self.n - 1)
            return join([seeds, *self._others], self.level.strictest)

        return at

    @property
    def _others(self) -> list[Range]:
        """Variances beside that of seeds, with their degrees, where they are known."""
        known = (one for one in (self.text, self.line) if one is not None)
        return [(error**2, freedom) for error, freedom in known]


def difference_to(
    arm: Mapping[int, float], baseline: Mapping[int, float], level: Level | None = None
) -> Difference:
    """Return the difference of two arms whose values are given by seed.

    Paired over the seeds that both have; only where they have none in common, unpaired.
    """
    shared = sorted(arm.keys() & baseline.keys())
    if shared or not arm or not baseline:
        pairs = [arm[seed] for seed in shared], [baseline[seed] for seed in shared]
        return paired_difference(*pairs, level)
    return welch(list(arm.values()), list(baseline.values()), level)


def contrast_of(
    values: Mapping[str, Mapping[int, float]], signs: Mapping[str, int], level: Level | None = None
) -> Difference:
    """Return a sum of arms, each with its sign, over the seeds that all of them have.

    Args:
        values: by arm, then by seed.
        signs: 1 or -1 by arm, as many of either.

    Example:
        >>> values = {"a": {1: 3.0}, "b": {1: 2.5}, "c": {1: 4.0}, "d": {1: 3.75}}
        >>> contrast_of(values, {"a": 1, "b": -1, "c": -1, "d": 1}).mean
        0.25
    """
    seeds = sorted(set.intersection(*(set(values.get(arm, ())) for arm in signs)))

    def total(sign: int, seed: int) -> float:
        return math.fsum(values[arm][seed] for arm, one in signs.items() if one == sign)

    plus, minus = ([total(sign, seed) for seed in seeds] for sign in (1, -1))
    return paired_difference(plus, minus, level)


def paired_difference(
    arm: Sequence[float], baseline: Sequence[float], level: Level | None = None
) -> Difference:
    """Do the paired t-test; return its interval and its smallest detectable effect.

    Example:
        >>> found = paired_difference([1.0, 2.1, 3.0], [1.1, 2.2, 3.2])
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
        return Difference(kind="paired", n=n, mean=same, error=0.0, flat=True)
    error = sd / math.sqrt(n)
    return Difference(kind="paired", n=n, mean=mean, error=error, freedom=n - 1, level=level)


def welch(
    arm: Sequence[float], baseline: Sequence[float], level: Level | None = None
) -> Difference:
    """Do Welch's t-test of two arms without a seed in common.

    What each seed has to itself stays in the differences: it finds less than pairs do.
    """
    level = level or Level()
    sizes = len(arm), len(baseline)
    mean = math.fsum(arm) / sizes[0] - math.fsum(baseline) / sizes[1]
    if min(sizes) < 2:
        return Difference(kind="welch", n=1, mean=mean)
    spreads = deviation(arm) ** 2, deviation(baseline) ** 2
    n = min(sizes)
    if math.sqrt(sum(spreads)) <= _rounding(arm, baseline):
        return Difference(kind="welch", n=n, mean=mean, error=0.0, flat=True)
    parts = [(one / size, size - 1) for one, size in zip(spreads, sizes, strict=True)]
    error, freedom = satterthwaite(parts)
    return Difference(kind="welch", n=n, mean=mean, error=error, freedom=freedom, level=level)


def spread_limits(error: Real, freedom: Real, confidence: float) -> Range:
    """Return the interval of sigma around an estimate of it: its chi-squared limits."""
    from scipy.special import chdtri

    tail = (1 - confidence) / 2
    low, high = (error * math.sqrt(freedom / chdtri(freedom, one)) for one in (tail, 1 - tail))
    return low, high


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of a sample, with n - 1."""
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def power(shift: Real, freedom: Real, alpha: Real) -> float:
    """Probability that a two-sided t-test rejects, where the truth is `shift` standard errors."""
    from scipy.special import nctdtr, stdtrit

    edge = -float(stdtrit(freedom, alpha / 2))
    below, within = (float(nctdtr(freedom, abs(shift), bound)) for bound in (-edge, edge))
    if math.isnan(within):  # the fast form gives up where the slow one does not
        from scipy.stats import nct

        within = float(nct.cdf(edge, freedom, abs(shift)))
    # Either form gives nan for the far tail, where it is below rounding.
    return 1 - within + (0.0 if math.isnan(below) else below)


def detectable(error: Real, freedom: Real, level: Level) -> float:
    """Return smallest true effect that is found at the power: the noncentral t, solved.

    Args:
        error: standard error of the difference.
        freedom: degrees of it.
    """
    return error * _shift(freedom, level.strictest, level.power)


@cache
def _shift(freedom: Real, alpha: float, wanted: float) -> float:
    """Return the true effect, in standard errors, that is found with this power."""
    from scipy.optimize import brentq

    def missing(shift: Real) -> float:
        return power(shift, freedom, alpha) - wanted

    most = 1.0
    while missing(most) < 0:
        most *= 2
    return float(brentq(missing, 0.0, most, xtol=1e-12, rtol=1e-12))


def required_seeds(effect: Real, at: Callable[[int], Range], level: Level) -> int | None:
    """Return seeds at which a test finds an effect at the power; None beyond a million.

    Args:
        at: standard error and its degrees at a number of seeds.
    """

    def enough(n: int) -> bool:
        error, freedom = at(n)
        return power(effect / error, freedom, level.strictest) >= level.power

    low, high = 1, 2
    while not enough(high):
        if high == MOST_SEEDS:
            return None
        low, high = high, min(2 * high, MOST_SEEDS)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _rounding(arm: Sequence[float], baseline: Sequence[float]) -> float:
    """Return what rounding may leave of equal differences, in the precision of the numbers.

    Nine digits tell a number of single precision, which most losses and scores are written in.
    """
    values = np.abs([*arm, *baseline])
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    if (np.abs(single - values) <= 5e-9 * values).all():
        return 8 * float(np.spacing(single.max()))
    return 8 * math.ulp(float(values.max()))
