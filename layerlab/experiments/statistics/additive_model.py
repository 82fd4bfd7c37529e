"""Fits losses as arm + seed + residual, so that all arms inform the noise of each.

y_as = mu_a + b_s + e_as. Seeds are shared, so what a seed has to itself leaves every difference;
what is left of an arm is its residual variance, moderated by those of the others. A table with
holes, where a run diverged or has not finished, is fitted by least squares like a whole one.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from layerlab.experiments.statistics.differences import (
    Difference,
    Level,
    contrast_of,
)
from layerlab.experiments.statistics.joined_variance import satterthwaite
from layerlab.experiments.statistics.moderated_variance import LENT, MOST, Prior, moderate, prior

ArmValues = Mapping[str, Mapping[int, float]]
# Arms that are needed for one to learn from the others.
FEWEST = 3


@dataclass(frozen=True)
class _Design:
    """Least squares of a table with missing cells, and the leverage of each cell."""

    weights: np.ndarray
    left: np.ndarray
    project: np.ndarray
    model: np.ndarray


class Additive:
    """The model of a table of losses.

    Args:
        values: by arm, then by seed.
        shared: by arm, the part of the other differences that it stands in as well (`presence`).
    """

    def __init__(self, values: ArmValues, shared: Mapping[str, float] | None = None) -> None:
        self.values = {arm: dict(found) for arm, found in values.items() if found}
        # Arms that ended at the same numbers are one and the same, and tell of noise once.
        self._first = {
            arm: next(one for one, other in self.values.items() if other == found)
            for arm, found in self.values.items()
        }
        self.arms = tuple(dict.fromkeys(self._first.values()))
        self.shared: dict[str, float] = {}
        for arm, part in (shared or {}).items():
            first = self._first.get(arm, arm)
            self.shared[first] = max(part, self.shared.get(first, 0.0))
        seeds = sorted({seed for found in self.values.values() for seed in found})
        pattern = tuple(tuple(seed in self.values[arm] for seed in seeds) for arm in self.arms)
        self._design = _fit(pattern)
        self._row = np.repeat(np.arange(len(self.arms)), [sum(row) for row in pattern])
        cells = [self.values[arm][s] for arm in self.arms for s in seeds if s in self.values[arm]]
        self._cells = np.array(cells)
        self.residuals = self._design.project @ self._cells

    @property
    def usable(self) -> bool:
        """Tell whether there are enough arms and residuals to moderate variances."""
        return len(self.arms) >= FEWEST and self.freedom > 0.5 and not self.flat

    @property
    def freedom(self) -> float:
        """Degrees of freedom of all residuals: (arms - 1)(seeds - 1) in a full table."""
        return float(self._design.left.sum())

    @cached_property
    def flat(self) -> bool:
        """Tell whether the residuals are no larger than rounding errors."""
        largest = float(np.abs(self._cells).max(initial=0.0))
        return bool(np.abs(self.residuals).max(initial=0.0) <= 8 * math.ulp(largest))

    @cached_property
    def freedoms(self) -> np.ndarray:
        """Degrees of freedom of each arm's residuals; they add up to those of all."""
        return np.bincount(self._row, self._design.left, len(self.arms))

    @cached_property
    def variances(self) -> np.ndarray:
        """Residual variance of each arm; their weighted mean is the residual mean square."""
        squares = np.bincount(self._row, self.residuals**2, len(self.arms))
        return np.divide(
            squares, self.freedoms, out=np.zeros_like(squares), where=self.freedoms > 1e-9
        )

    @property
    def pooled(self) -> float:
        """The residual mean square."""
        return float(self.residuals @ self.residuals) / self.freedom

    @cached_property
    def common(self) -> Prior:
        """The prior of the variances, no surer than the number of arms allows."""
        counted = int((self.freedoms > 1e-9).sum())
        found = prior(self.variances, self.freedoms) if counted > 1 else Prior(self.pooled, MOST)
        return Prior(found.variance, min(found.freedom, MOST, max(1, counted - 1)))

    def difference(self, arm: str, baseline: str, level: Level) -> Difference:
        """Return an arm against another, with moderated variances of both."""
        return self.contrast({arm: 1, baseline: -1}, level)

    def contrast(self, signs: Mapping[str, int], level: Level) -> Difference:
        """Return a sum of arms, each with its sign, with moderated variances of all.

        Degrees of freedom are Satterthwaite's, and no more than the table has.
        """
        own = contrast_of(self.values, signs, level)
        if own.n < 2 or own.identical or not self.usable:
            return own
        wanted = np.zeros(self._design.model.shape[1])
        for arm, sign in signs.items():
            wanted[self.arms.index(self._first[arm])] += sign
        weights = wanted[: len(self.arms)] @ self._design.weights
        if not self._is_estimable(weights, wanted):
            return own
        shares = np.bincount(self._row, weights**2, len(self.arms))
        parts = [
            (share * variance, freedom)
            for share, (variance, freedom) in zip(shares, self.moderated, strict=True)
            if share * variance > 0
        ]
        error, freedom = satterthwaite(parts)
        return Difference(
            kind="moderated",
            n=own.n,
            mean=float(weights @ self._cells),
            error=error,
            freedom=min(freedom, self.freedom),
            level=level,
        )

    @cached_property
    def moderated(self) -> list[tuple[float, float]]:
        """The moderated variance of each arm, with its degrees of freedom.

        An arm that stands in many differences is lent less: its variance is wrong for all of them.
        """
        found = []
        for arm, variance, own in zip(self.arms, self.variances, self.freedoms, strict=True):
            part = self.shared.get(arm, 0.0)
            most = LENT * own / part**2 if part else math.inf
            lent = Prior(self.common.variance, min(self.common.freedom, most))
            # An arm of a single seed has nothing of its own.
            if own + lent.freedom < 1e-9:
                lent = self.common
            found.append((moderate(variance, own, lent), own + lent.freedom))
        return found

    def unequal(self) -> float | None:
        """Test whether all arms vary alike (Bartlett, on the residuals): its p, or None."""
        from scipy.stats import bartlett

        groups = [self.residuals[self._row == place] for place in range(len(self.arms))]
        groups = [group for group in groups if len(group) > 1 and group.std() > 0]
        return float(bartlett(*groups).pvalue) if self.usable and len(groups) > 1 else None

    def spread(self, arm: str) -> float:
        """Return the standard deviation of an arm's residuals."""
        return math.sqrt(self.variances[self.arms.index(self._first[arm])])

    def _is_estimable(self, weights: np.ndarray, wanted: np.ndarray) -> bool:
        """Return whether a sum of arms can be estimated: missing cells may cut the table in two."""
        return bool(np.abs(weights @ self._design.model - wanted).max() < 1e-8)


def presence(pairs: Collection[tuple[str, ...]]) -> dict[str, float]:
    """Return the share of other differences that each arm takes part in.

    Args:
        pairs: the arms of each difference; of an interaction all four.

    Example:
        >>> presence([("a", "base"), ("b", "base"), ("c", "base")])
        {'a': 0.0, 'base': 1.0, 'b': 0.0, 'c': 0.0}
    """
    distinct = dict.fromkeys(frozenset(pair) for pair in pairs)
    counted = Counter(arm for pair in distinct for arm in sorted(pair))
    return {arm: (count - 1) / max(1, len(distinct) - 1) for arm, count in counted.items()}


@lru_cache(maxsize=256)
def _fit(pattern: tuple[tuple[bool, ...], ...]) -> _Design:
    """Fit arm + seed by least squares to the cells that a table has."""
    arms, seeds = len(pattern), len(pattern[0]) if pattern else 0
    places = [(a, s) for a in range(arms) for s in range(seeds) if pattern[a][s]]
    model = np.zeros((len(places), arms + seeds))
    for cell, (arm, seed) in enumerate(places):
        model[cell, arm] = model[cell, arms + seed] = 1.0
    inverse = np.linalg.pinv(model)
    project = np.eye(len(places)) - model @ inverse
    left = np.clip(np.diag(project), 0.0, 1.0)
    return _Design(inverse[:arms], np.where(left < 1e-9, 0.0, left), project, model)
