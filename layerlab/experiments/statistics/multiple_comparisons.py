"""Corrects all tests of a recipe together, so that a pair has one verdict on a page.

A test is about one pair and one size: is the difference below it, or above? That an arm is better
is the test at 0; that two are alike within a margin are the tests at both its ends. Arms and claims
share their tests. Holm's correction is over all of them, and each look spends its part of alpha.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from layerlab.experiments.statistics.differences import Difference


@dataclass(frozen=True)
class PairTest:
    """A test of whether the difference `arm - baseline` lies below a size or above it.

    Attributes:
        shift: that size: 0, or an end of a margin.
        measure: what is counted.
        less: a pair whose difference is taken off that of this one: a test of an interaction.
    """

    arm: str
    baseline: str
    shift: float = 0.0
    measure: str = "loss"
    less: tuple[str, str] | None = None

    @property
    def arms(self) -> tuple[str, ...]:
        """All arms that it is about."""
        return (self.arm, self.baseline, *(self.less or ()))

    @property
    def turned(self) -> "PairTest":
        """The same test from the other arm's side."""
        less = None if self.less is None else (self.less[1], self.less[0])
        return PairTest(self.baseline, self.arm, -self.shift, self.measure, less)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The evidence of the runs on a pair of arms.

    Attributes:
        found: the difference over the seeds that ended with a number.
        lost: seeds that diverged, of the arm and of its baseline.
        ended: seeds that ended, diverged or not, of either.
        higher: whether more is better, so that whoever diverged ended below.
        seeds: of the look that it is from; the first of a sweep only chooses a rate.
    """

    found: Difference
    lost: tuple[int, int] = (0, 0)
    ended: tuple[int, int] = (0, 0)
    higher: bool = False
    seeds: int = 0

    @property
    def divergence(self) -> float:
        """Return Fisher's exact p of such unequal numbers of diverged runs."""
        from scipy.stats import fisher_exact

        kept = [ended - lost for ended, lost in zip(self.ended, self.lost, strict=True)]
        return float(fisher_exact([list(self.lost), kept]).pvalue)

    def at(self, shift: float) -> tuple[float, int]:
        """Return the two-sided p of a difference of `shift`, and the side it seems to lie on.

        Where a run diverged there are two tests, of the losses that are left and of how many
        diverged, and the smaller p counts twice. An arm that diverged more often is not better for
        what is left of it: a run that diverged ended above any loss.
        """
        p, mean = self.found.p_at(shift), self.found.mean or 0.0
        side = _sign(mean - shift)
        if not any(self.lost):
            return (1.0, 0) if p is None else (p, side)
        more = _sign(self.lost[0] - self.lost[1]) * (-1 if self.higher else 1)
        exact = self.divergence
        if p is None or exact < p:
            return (min(1.0, exact if p is None else 2 * exact), more)
        return (1.0, 0) if side == -more else (min(1.0, 2 * p), side)


class EvidenceSource(Protocol):
    """The runs up to a look."""

    def evidence(self, test: PairTest) -> Evidence:
        """Return the evidence on the pair of a test."""


@dataclass(frozen=True, kw_only=True)
class PValue:
    """The p of a test, before and after correction, and the side that it speaks for.

    Attributes:
        raw: p before any correction.
        corrected: p for all tests and looks of the recipe.
        side: of the shift that the difference looks to be on: -1 below, 1 above, 0 neither.
        look: that it is from, counted from 0: the one that decided it, or else the last.
    """

    raw: float
    corrected: float
    side: int
    look: int = -1

    def toward(self, side: int) -> tuple[float, float]:
        """Return p, before and after the correction, of a difference on one side.

        1 if it is not.
        """
        return (self.raw, self.corrected) if self.side == side else (1.0, 1.0)

    @property
    def turned(self) -> "PValue":
        """The same evidence from the other arm's side."""
        return replace(self, side=-self.side)


class Family:
    """The tests of a recipe with their results.

    Args:
        tests: in any order, and as often as they are asked.
        stages: the runs at each look that has been taken, each with its share of alpha; the shares
            add up to no more than 1.
        alpha: probability of a false word, of all tests and looks together.
        beside: p of tests that are corrected with these, as those at the other sizes of a ladder.

    Attributes:
        has_look: whether any look has been taken.
    """

    def __init__(
        self,
        tests: Iterable[PairTest],
        stages: Sequence[tuple[float, EvidenceSource]],
        alpha: float,
        beside: Sequence[float] = (),
    ) -> None:
        self.alpha, self.has_look, self._beside = alpha, bool(stages), list(beside)
        open_ = PValue(raw=1.0, corrected=1.0, side=0)
        self._found: dict[PairTest, PValue] = {}
        for test in tests:
            if test.turned not in self._found:
                self._found.setdefault(test, open_)
        self.tests = list(self._found)
        for look, (share, stage) in enumerate(stages):
            self._judge(look, share, stage)

    def __len__(self) -> int:
        return len(self.tests) + len(self._beside)

    @property
    def raw(self) -> list[float]:
        """The p of each of its own tests, before any correction."""
        return [self[test].raw for test in self.tests]

    def __getitem__(self, test: PairTest) -> PValue:
        """Return the result of a test, from either arm's side."""
        return self._found[test] if test in self._found else self._found[test.turned].turned

    def _judge(self, look: int, share: float, stage: EvidenceSource) -> None:
        """Judge again; what an earlier look decided stays decided."""
        seen = [stage.evidence(test).at(test.shift) for test in self.tests]
        corrected = holm([*(raw for raw, _ in seen), *self._beside])
        for test, (raw, side), after in zip(self.tests, seen, corrected, strict=False):
            if self._found[test].corrected >= self.alpha:
                adjusted = min(1.0, after / share) if share else 1.0
                self._found[test] = PValue(raw=raw, corrected=adjusted, side=side, look=look)


def holm(raw: Sequence[float]) -> list[float]:
    """Return Holm's step-down correction: p of each arm, for all arms together.

    corrected_(i) = max over j <= i of min(1, (k - j + 1) p_(j)), in ascending order.

    A p that is no number tells nothing, and counts as 1.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    known = [1.0 if math.isnan(p) else p for p in raw]
    corrected = [0.0] * len(raw)
    reached = 0.0
    for rank, index in enumerate(sorted(range(len(raw)), key=known.__getitem__)):
        reached = max(reached, min(1.0, (len(raw) - rank) * known[index]))
        corrected[index] = reached
    return corrected


def spent_alpha(alpha: float, part: float) -> float:
    """Return the alpha spent at this share of the information.

    2 - 2 Phi(z_(alpha/2) / sqrt(part)): next to nothing at first, all of it at the end.

    Source: lan83, the function that resembles O'Brien and Fleming's bounds.

    Example:
        >>> [round(spent_alpha(0.05, part), 5) for part in (0.25, 0.5, 1.0)]
        [9e-05, 0.00557, 0.05]
    """
    from scipy.special import ndtr, ndtri

    return float(2 * ndtr(ndtri(alpha / 2) / math.sqrt(part)))


def shares(looks: Sequence[int], alpha: float) -> list[float]:
    """Return the alpha that each look spends beyond the one before.

    The shares add up to 1, so the probability of a false word at any look is no more than alpha,
    however the looks hang together. Their joint distribution would allow the last one a little
    more.
    """
    if len(looks) == 1:
        return [1.0]
    most = max(looks)
    spendings = [spent_alpha(alpha, look / most) for look in looks]
    return [
        (now - before) / alpha for before, now in zip([0.0, *spendings], spendings, strict=False)
    ]


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def tabulate_test(found: Difference, corrected: float | None = None) -> dict[str, Any]:
    """Return a difference and its test as they stand in `comparison.json`."""
    return {
        "n": found.n,
        "difference": found.mean,
        "difference_sd": found.sd,
        "low": found.low,
        "high": found.high,
        "seeds_error": found.error,
        "text_error": found.text[0] if found.text else None,
        "p": found.p,
        "holm": None if found.p is None else corrected,
        "detectable": found.detectable,
        "seeds_needed": found.needed,
        "variance": found.kind,
    }
