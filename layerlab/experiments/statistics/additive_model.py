"""Fits losses as arm + seed + residual, so that all arms inform the noise of each.

y_as = mu_a + b_s + e_as. Seeds are shared, so what a seed has to itself leaves every difference;
what is left of an arm is its residual variance, moderated by those of the others. A table with
holes, where a run diverged or has not finished, is fitted by least squares like a whole one.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
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

    Lines of the longer side that have the same cells are alike in all but their values, and are
    reckoned with once: their pattern.

    Attributes:
        row, column: of each cell, its arm and its seed.
        filled: 1 where an arm has a seed, an array of arms by seeds.
        counts: cells of each arm, and of each seed.
        inverse: generalized, of the equations of one side without the other.
        by_arm: whether that side is the arms.
        left: of each cell, what of its noise is left in its residual.
        patterns: 1 where a line of the longer side has a cell, each different one once.
        kinds: the pattern of each line.
        parts: of each arm, the part of the table that hangs together with it.
    """

    row: np.ndarray
    column: np.ndarray
    filled: np.ndarray
    counts: tuple[np.ndarray, np.ndarray]
    inverse: np.ndarray
    by_arm: bool
    left: np.ndarray
    patterns: np.ndarray
    kinds: np.ndarray
    parts: np.ndarray

    def fit(self, cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the effects of arms and of seeds that fit cells best."""
        (of_arm, of_seed), filled = self.counts, self.filled
        arms = np.bincount(self.row, cells, len(of_arm))
        seeds = np.bincount(self.column, cells, len(of_seed))
        if self.by_arm:
            first = self.inverse @ (arms - filled @ (seeds / of_seed))
            return first, (seeds - first @ filled) / of_seed
        second = self.inverse @ (seeds - (arms / of_arm) @ filled)
        return (arms - filled @ second) / of_arm, second

    def is_estimable(self, signs: Mapping[int, int]) -> bool:
        """Return whether a sum of arms is: in each part of the table they add up to nothing."""
        sums: Counter[int] = Counter()
        for arm, sign in signs.items():
            sums[int(self.parts[arm])] += sign
        return not any(sums.values())

    def spread(self, signs: Mapping[int, int]) -> tuple[dict[int, float], np.ndarray]:
        """Return how much of the variance of each arm's noise is in a sum of arms.

        Returns:
            That of arms of their own, and of all others by their pattern. Where arms are the
            shorter side each has its own.
        """
        arms, wanted = list(signs), np.array([*signs.values()], float)
        if self.by_arm:
            first = wanted @ self.inverse[arms]
            centres = self.patterns @ first / self.patterns.sum(1)
            squares = self.patterns * (first - centres[:, None]) ** 2
            shares = np.bincount(self.kinds, minlength=len(centres)) @ squares
            return dict(enumerate(shares.tolist())), np.zeros(0)
        of_arm = self.counts[0]
        second = -self.inverse @ (wanted / of_arm[arms] @ self.filled[arms])
        sizes = self.patterns.sum(1)
        centres = self.patterns @ second / sizes
        own = {}
        for arm, sign in signs.items():
            kind = self.kinds[arm]
            weights = sign / of_arm[arm] + second - centres[kind]
            own[arm] = float(self.patterns[kind] @ weights**2)
        return own, (self.patterns * (second - centres[:, None]) ** 2).sum(1)


class Additive:
    """The model of a table of losses.

    Args:
        values: by arm, then by seed.
        shared: by arm, the part of the other differences that it stands in as well (`presence`).
        exact: whether equal values show that two arms compute the same (`Difference`).
    """

    def __init__(
        self,
        values: ArmValues,
        shared: Mapping[str, float] | None = None,
        *,
        exact: bool = True,
    ) -> None:
        self.values = {arm: dict(found) for arm, found in values.items() if found}
        self.exact = exact
        # Arms that ended at the same numbers are one and the same, and tell of noise once.
        alike: dict[frozenset[tuple[int, float]], str] = {}
        self._first = {
            arm: alike.setdefault(frozenset(found.items()), arm) if exact else arm
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
        self._effects, of_seed = self._design.fit(centred)
        fitted = self._effects[self._row] + of_seed[self._design.column]
        self.residuals = centred - fitted

    @property
    def usable(self) -> bool:
        """Return whether there are enough arms and residuals to moderate variances."""
        return len(self.arms) >= FEWEST and self.freedom > 0.5 and not self.flat

    @property
    def freedom(self) -> float:
        """Degrees of freedom of all residuals: (arms - 1)(seeds - 1) in a full table."""
        return float(self._design.left.sum())

    @cached_property
    def flat(self) -> bool:
        """Return whether the residuals of most arms are no larger than rounding errors.

        As scores and counts of few seeds may be, which are whole numbers: no common variance is
        told by them.
        """
        largest = float(np.abs(self._cells).max(initial=0.0))
        middle = float(np.median(self.variances[self.freedoms > 1e-9]))
        return math.sqrt(middle) <= 8 * math.ulp(largest)

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

    @cached_property
    def common(self) -> Prior:
        """The prior of the variances, no surer than the number of arms allows."""
        # Two at least: what is left of one arm alone would be none of its seeds'.
        counted = int((self.freedoms > 1e-9).sum())
        found = prior(self.variances, self.freedoms)
        return Prior(found.variance, min(found.freedom, MOST, counted - 1))

    def difference(self, arm: str, baseline: str, level: Level) -> Difference:
        """Return an arm against another, with moderated variances of both."""
        return self.contrast({arm: 1, baseline: -1}, level)

    def contrast(self, signs: Mapping[str, int], level: Level) -> Difference:
        """Return a sum of arms, each with its sign, with moderated variances of all.

        Degrees of freedom are Satterthwaite's, and no more than the table has.
        """
        own = replace(contrast_of(self.values, signs, level), exact=self.exact)
        if own.n < 2 or own.identical or not self.usable:
            return own
        wanted: Counter[int] = Counter()
        for arm, sign in signs.items():
            wanted[self._places[self._first[arm]]] += sign
        if not self._design.is_estimable(wanted):
            return own
        error, freedom = satterthwaite(list(self._list_parts(wanted)))
        return Difference(
            kind="moderated",
            n=own.n,
            mean=math.fsum(sign * float(self._effects[index]) for index, sign in wanted.items()),
            error=error,
            freedom=min(freedom, self.freedom),
            exact=self.exact,
            level=level,
        )

    def _list_parts(self, wanted: Mapping[int, int]) -> Iterator[tuple[float, float]]:
        """Yield the variances that add up to that of a sum of arms, with their degrees.

        Arms of a pattern, beside those of the sum, are one: its degrees are Satterthwaite's too.
        """
        own, alike = self._design.spread(wanted)
        for index, share in own.items():
            variance, freedom = self.moderated[index]
            if share * variance > 0:
                yield share * variance, freedom
        for kind in np.flatnonzero(alike).tolist():
            count, sums, squares = self._lent[kind]
            for index in wanted:
                if self._design.kinds[index] == kind:
                    variance, freedom = self.moderated[index]
                    count, sums = count - 1, sums - variance
                    squares -= variance**2 / freedom
            if count and sums > 0 and squares > 0:
                yield float(alike[kind]) * sums, sums**2 / squares

    @cached_property
    def _lent(self) -> list[tuple[int, float, float]]:
        """Of the arms of each pattern: how many, their variances, and squares over degrees."""
        variance, freedom = np.array(self.moderated).T
        kinds = self._design.kinds
        return list(
            zip(
                np.bincount(kinds).tolist(),
                np.bincount(kinds, variance).tolist(),
                np.bincount(kinds, variance**2 / freedom).tolist(),
                strict=True,
            )
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

        if not self.usable:
            return None
        ends = np.cumsum(self._design.counts[0], dtype=int)[:-1]
        groups = np.split(self.residuals, ends)
        # What is left of an arm without a degree of its own is a rounding error.
        groups = [
            group
            for group, own in zip(groups, self.freedoms, strict=True)
            if own > 1e-9 and group.std() > 0
        ]
        return float(bartlett(*groups).pvalue) if len(groups) > 1 else None

    def spread(self, arm: str) -> float:
        """Return the standard deviation of an arm's residuals."""
        return math.sqrt(self.variances[self._places[self._first[arm]]])

    @cached_property
    def _places(self) -> dict[str, int]:
        return {arm: index for index, arm in enumerate(self.arms)}


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
    index, level = (row, column) if by_arm else (column, row)
    share = table / other
    size = len(own)
    if table.all():
        inverse = np.eye(size) / max(1, len(other))
    else:
        inverse = _invert(np.diag(own) - share @ table.T)
    reach = inverse @ share
    noise = inverse[index, index] - 2 * reach[index, level] + (share * reach).sum(0)[level]
    left = 1 - 1 / other[level] - noise
    left = np.where(left < 1e-9, 0.0, left)
    patterns, kinds = np.unique(table.T, axis=0, return_inverse=True)
    parts = _part(row, column, filled.shape)
    return _Design(
        row, column, filled, counts, inverse, by_arm, left, patterns, kinds.reshape(-1), parts
    )


def _part(row: np.ndarray, column: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return of each arm the part of the table that shared seeds join it to."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    arms, seeds = shape
    cells = (np.ones(len(row)), (row, column + arms))
    joined = coo_array(cells, shape=(arms + seeds, arms + seeds))
    return np.asarray(connected_components(joined, directed=False)[1][:arms])


def _invert(equations: np.ndarray) -> np.ndarray:
    """Return a generalized inverse of equations that leave the sum of each part's levels open."""
    from scipy.sparse.csgraph import connected_components

    # What this adds to a part shifts its levels together, and no difference inside of it.
    _, parts = connected_components(equations != 0, directed=False)
    return np.linalg.inv(equations + (parts[:, None] == parts))
