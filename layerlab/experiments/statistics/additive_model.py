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
    """Least squares of a table with missing cells, by the normal equations of its shorter side.

    Attributes:
        row, column: of each cell, its arm and its seed.
        filled: 1 where an arm has a seed, an array of arms by seeds.
        counts: cells of each arm, and of each seed.
        inverse: generalised, of the equations of one side without the other.
        by_arm: whether that side is the arms.
        left: of each cell, what of its noise is left in its residual.
    """

    row: np.ndarray
    column: np.ndarray
    filled: np.ndarray
    counts: tuple[np.ndarray, np.ndarray]
    inverse: np.ndarray
    by_arm: bool
    left: np.ndarray

    def solve(self, arms: np.ndarray, seeds: np.ndarray) -> np.ndarray:
        """Return, by cell, the fit to sums of arms and of seeds."""
        (of_arm, of_seed), filled = self.counts, self.filled
        if self.by_arm:
            first = self.inverse @ (arms - filled @ (seeds / of_seed))
            second = (seeds - first @ filled) / of_seed
        else:
            second = self.inverse @ (seeds - (arms / of_arm) @ filled)
            first = (arms - filled @ second) / of_arm
        return first[self.row] + second[self.column]

    def add(self, cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the sums of each arm and of each seed."""
        first, second = (len(one) for one in self.counts)
        return np.bincount(self.row, cells, first), np.bincount(self.column, cells, second)


class Additive:
    """The model of a table of losses.

    Args:
        values: by arm, then by seed.
        shared: by arm, the part of the other differences that it stands in as well (`presence`).
    """

    def __init__(self, values: ArmValues, shared: Mapping[str, float] | None = None) -> None:
        self.values = {arm: dict(found) for arm, found in values.items() if found}
        # Arms that ended at the same numbers are one and the same, and tell of noise once.
        alike: dict[frozenset[tuple[int, float]], str] = {}
        self._first = {
            arm: alike.setdefault(frozenset(found.items()), arm)
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
        self._row = self._design.row
        cells = [self.values[arm][s] for arm in self.arms for s in seeds if s in self.values[arm]]
        self._cells = np.array(cells)
        # Less their mean, of which nothing is left but would be rounded.
        centred = self._cells - (self._cells.mean() if cells else 0.0)
        self.residuals = centred - self._design.solve(*self._design.add(centred))

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
        wanted = np.zeros(len(self.arms))
        for arm, sign in signs.items():
            wanted[self._places[self._first[arm]]] += sign
        weights = self._design.solve(wanted, np.zeros(len(self._design.counts[1])))
        if not self._is_estimable(weights, wanted):
            return own
        shares = np.bincount(self._row, weights**2, len(self.arms))
        parts = [
            (float(shares[place]) * variance, freedom)
            for place in np.flatnonzero(shares).tolist()
            for variance, freedom in [self.moderated[place]]
            if shares[place] * variance > 0
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
        return math.sqrt(self.variances[self._places[self._first[arm]]])

    @cached_property
    def _places(self) -> dict[str, int]:
        return {arm: place for place, arm in enumerate(self.arms)}

    def _is_estimable(self, weights: np.ndarray, wanted: np.ndarray) -> bool:
        """Return whether a sum of arms can be estimated: missing cells may cut the table in two."""
        arms, seeds = self._design.add(weights)
        return bool(max(np.abs(arms - wanted).max(), np.abs(seeds).max()) < 1e-8)


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


@lru_cache(maxsize=16)
def _fit(pattern: tuple[tuple[bool, ...], ...]) -> _Design:
    """Fit arm + seed by least squares to the cells that a table has."""
    filled = np.array(pattern, float).reshape(len(pattern), len(pattern[0]) if pattern else 0)
    row, column = np.nonzero(filled)
    counts = filled.sum(1), filled.sum(0)
    by_arm = len(counts[0]) <= len(counts[1])
    # The shorter side first: of the other, each level is the mean of what the first leaves.
    table, own, other = (filled, *counts) if by_arm else (filled.T, *reversed(counts))
    place, level = (row, column) if by_arm else (column, row)
    share = table / other
    size = len(own)
    if table.all():
        inverse = (np.eye(size) - 1 / max(1, size)) / max(1, len(other))
    else:
        inverse = _invert(np.diag(own) - share @ table.T)
    reach = inverse @ share
    noise = inverse[place, place] - 2 * reach[place, level] + (share * reach).sum(0)[level]
    left = np.clip(1 - 1 / other[level] - noise, 0.0, 1.0)
    left = np.where(left < 1e-9, 0.0, left)
    return _Design(row, column, filled, counts, inverse, by_arm, left)


def _invert(equations: np.ndarray) -> np.ndarray:
    """Return the pseudo-inverse of equations of which the levels of each part add up to nothing."""
    from scipy.sparse.csgraph import connected_components

    # With 1 / size in a part, its levels add up to one, and the rest stays as it is.
    _, parts = connected_components(equations != 0, directed=False)
    free = (parts[:, None] == parts) / np.bincount(parts)[parts]
    return np.asarray(np.linalg.inv(equations + free) - free)
