"""Trend of a gain over sizes, and its forecast beyond those that were measured.

Gains g_ks of seeds s at sizes k lie about a line in x = log2 of the parameters,
g_ks = a + b x_k + u_k + e_ks: sizes scatter about the line with a variance tau^2 (REML), and seeds
inside of a size with their own. The change per doubling is that of the sizes measured, of which
scatter is no error; beyond them it counts, and so does the largest error that the line makes where
one size is left out and forecast from the others. Of K sizes both have no more than K - 2 degrees.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from layerlab.experiments.statistics.differences import Difference, Level
from layerlab.experiments.statistics.joined_variance import satterthwaite
from layerlab.experiments.statistics.moderated_variance import MOST, Prior, moderate, prior

# Doublings by which a forecast may go beyond the step that was tested, as sizes are met about.
SLACK = 0.25
# Sizes from which one can be left out, and a line be held against it.
FEWEST = 3


@dataclass(frozen=True, kw_only=True)
class SizeGain:
    """The gain of an arm at one size.

    Attributes:
        doublings: log2 of the parameters.
        found: the difference of the arm to its baseline, below 0 where it is better.
        freedom: degrees of it from its own seeds, before other sizes lent any.
        gains: by seed.
    """

    doublings: float
    found: Difference
    freedom: float
    gains: Sequence[float] = ()


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A size that was forecast from the others.

    Attributes:
        place: of the size.
        forecast: the gain that the line of the others has there.
        error: the gain less the forecast.
    """

    place: int
    forecast: float
    error: float


def lend(found: Sequence[Difference]) -> Prior | None:
    """Return what the sizes have in common of their variance, to be lent to each; None if nothing.

    No surer than the number of sizes allows.
    """
    usable = [one for one in found if one.parts]
    if len(usable) < 2:
        return None
    variances = [(one.error or 0.0) ** 2 * one.n for one in usable]
    common = prior(variances, [one.freedom for one in usable])
    return Prior(common.variance, min(common.freedom, MOST, len(usable) - 1.0))


def borrow(found: Difference, common: Prior | None) -> Difference:
    """Return a difference whose variance is drawn towards the common one."""
    if common is None or found.error is None or found.flat:
        return found
    variance = moderate(found.error**2 * found.n, found.freedom, common)
    error, freedom = math.sqrt(variance / found.n), found.freedom + common.freedom
    return replace(found, kind="moderated", error=error, freedom=freedom)


class SizeTrend:
    """The line of an arm's gains over sizes.

    Args:
        sizes: two or more, each with an error.
        level: of its intervals.
    """

    def __init__(self, sizes: Sequence[SizeGain], level: Level) -> None:
        self.sizes, self.level = list(sizes), level
        self._places = np.array([one.doublings for one in sizes])
        self._means = np.array([-(one.found.mean or 0.0) for one in sizes])

    @cached_property
    def slope(self) -> Difference:
        """The change of the gain per doubling, over the sizes measured."""
        centred = self._places - self._places.mean()
        return self._combine(centred / (centred @ centred))

    @cached_property
    def scatter(self) -> float:
        """The standard deviation of sizes about the line, beyond what seeds explain (REML)."""
        return reml_scatter(self._places.tolist(), [one.gains for one in self.sizes])

    @cached_property
    def left_out(self) -> list[LeftOut]:
        """Each size, forecast from the others; none where two are left of fewer than three."""
        if len(self.sizes) < FEWEST:
            return []
        found = []
        for index, (there, gain) in enumerate(zip(self._places, self._means, strict=True)):
            kept = np.arange(len(self.sizes)) != index
            forecast = float(_weights(self._places[kept], there) @ self._means[kept])
            found.append(LeftOut(place=index, forecast=forecast, error=float(gain) - forecast))
        return found

    @property
    def reach(self) -> float:
        """Doublings beyond the largest size that a forecast was tested over; 0 where none was."""
        return float(self._places[-1] - self._places[-2]) if self.left_out else 0.0

    def at(self, doublings: float) -> Difference:
        """Return the gain on the line at a size inside the ladder, uncertain by seeds alone."""
        return self._combine(_weights(self._places, doublings))

    def beyond(self, doublings: float) -> Difference:
        """Return the gain that is forecast beyond the largest of three sizes or more.

        With all that is uncertain: the error of leaving out grows with the distance, in steps of
        the last two sizes.
        """
        weights = _weights(self._places, doublings)
        distance = float(doublings - self._places[-1])
        scattered = self.scatter**2 * (float(weights @ weights) + 1)
        missed = (max(abs(one.error) for one in self.left_out) * distance / self.reach) ** 2
        error = math.sqrt(scattered + missed)
        return replace(self._combine(weights), line=(error, len(self.sizes) - 2))

    def within_reach(self, doublings: float) -> bool:
        """Return whether leaving one size out has tested a forecast as far as this."""
        return bool(self.left_out) and doublings <= self._places[-1] + self.reach + SLACK

    def _combine(self, weights: np.ndarray) -> Difference:
        """Return a weighted sum of the gains; its degrees are those of the sizes' own seeds."""
        parts = [
            (float(weight * (one.found.whole or (0.0, 0))[0]) ** 2, one.freedom)
            for weight, one in zip(weights, self.sizes, strict=True)
        ]
        error, freedom = satterthwaite(parts)
        return Difference(
            kind="paired",
            n=min(one.found.n for one in self.sizes),
            mean=float(weights @ self._means),
            error=error,
            freedom=freedom,
            level=self.level,
        )


def reml_scatter(places: Sequence[float], gains: Sequence[Sequence[float]]) -> float:
    """Return the standard deviation of sizes about a line, by restricted maximum likelihood.

    Args:
        places: of each size on the line.
        gains: of each size, one for each seed.

    Example:
        >>> reml_scatter([0.0, 1.0, 2.0], [[0.0, 0.1], [1.0, 1.1], [2.0, 2.1]])
        0.0
    """
    from scipy.optimize import minimize_scalar

    counts = np.array([len(one) for one in gains], float)
    means = np.array([np.mean(one) for one in gains])
    inside = float(sum(((np.array(one) - np.mean(one)) ** 2).sum() for one in gains))
    design = np.stack([np.ones(len(places)), np.array(places)], axis=1)
    total = counts.sum() - design.shape[1]
    if len(gains) < FEWEST or inside == 0.0:
        return 0.0

    def profile(ratio: float) -> tuple[float, float]:
        """Return -2 log of the likelihood, and sigma^2, where tau^2 is so many sigma^2."""
        weights = counts / (1 + ratio * counts)
        gram = design.T @ (weights[:, None] * design)
        rest = means - design @ np.linalg.solve(gram, design.T @ (weights * means))
        variance = (inside + float(weights @ rest**2)) / total
        spread = float(np.log1p(ratio * counts).sum() + np.linalg.slogdet(gram)[1])
        return total * math.log(variance) + spread, variance

    found = minimize_scalar(
        lambda log: profile(math.exp(log))[0], bounds=(-12, 12), method="bounded"
    )
    ratio = math.exp(found.x)
    if profile(0.0)[0] <= found.fun + 1e-9:
        return 0.0
    return math.sqrt(ratio * profile(ratio)[1])


def _weights(places: np.ndarray, there: float) -> np.ndarray:
    """Return the weights by which values at places make up the value of their line elsewhere."""
    centred = places - places.mean()
    return 1 / len(places) + (there - places.mean()) * centred / (centred @ centred)


def sizes_of(
    doublings: Sequence[float],
    found: Sequence[Difference],
    gains: Sequence[Mapping[int, float]],
    common: Prior | None,
) -> list[SizeGain]:
    """Return the sizes of which pairs of seeds have an error, drawn towards the common variance."""
    return [
        SizeGain(
            doublings=doubling,
            found=borrow(one, common),
            freedom=float(one.freedom),
            gains=list(own.values()),
        )
        for doubling, one, own in zip(doublings, found, gains, strict=True)
        if one.whole is not None and own
    ]
