"""Judges the claims that sources make about arms: each holds, fails, or is not decided.

A claim is made of pairs of arms, and each pair of tests: is the difference below 0, or below an end
of a margin? The tests are those of the whole recipe, corrected together (`family`), so that a claim
says of a pair what the table says. It holds where every test came out as it says, and fails where
one came out otherwise. That two arms are alike is a claim as well: their difference must lie below
one end of the margin and above the other, and fails where it surely lies beyond one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from layerlab.experiments.analysis.interim import LOSS, Look
from layerlab.experiments.analysis.readings.run_readings import unit_of
from layerlab.experiments.analysis.verdict import (
    describe_interval,
    describe_later,
    describe_pairing,
    describe_seeds,
    number,
)
from layerlab.experiments.statistics.differences import Difference, Level
from layerlab.experiments.statistics.multiple_comparisons import Evidence, Family, PairTest, PValue
from layerlab.recipes.compared_measures import is_scored, is_watched
from layerlab.recipes.comparison_sections import Claim, CompareSection

ClaimWord = Literal["holds", "fails", "not decided"]
# A test, and the side of its shift that the claim says the difference is on.
SidedTest = tuple[PairTest, int]
# Relations that a margin belongs to.
_WITHIN = ("alike", "no better")


@dataclass(frozen=True, kw_only=True)
class ArmPair:
    """Two arms of a claim.

    Attributes:
        arm: that it says something of.
        baseline: that it is held against.
        evidence: what the runs say of them.
        asked: findings of its tests, each with the side that it should be on.
        missing: seeds of either that have not finished.
        later: the difference over all seeds, where an earlier look has decided.
    """

    arm: str
    baseline: str
    evidence: Evidence
    asked: Sequence[tuple[PValue, int]]
    missing: Sequence[int] = ()
    later: Difference | None = None

    @property
    def right(self) -> tuple[float, float]:
        """The p-value for the claim, before and after the correction."""
        both = [found.toward(side) for found, side in self.asked]
        return max(raw for raw, _ in both), max(after for _, after in both)

    @property
    def wrong(self) -> tuple[float, float]:
        """The p-value against the claim, before and after the correction."""
        both = [found.toward(-side) for found, side in self.asked]
        return min(raw for raw, _ in both), min(after for _, after in both)

    def content(self) -> dict[str, Any]:
        """Return the content as plain values."""
        found = self.evidence.found
        return {
            "arm": self.arm,
            "against": self.baseline,
            "n": found.n,
            "difference": found.mean,
            "low": found.low,
            "high": found.high,
            "p": found.p,
            "as_said": self.right[1],
            "otherwise": self.wrong[1],
            "missing": list(self.missing),
        }


@dataclass(frozen=True, kw_only=True)
class JudgedClaim:
    """A claim with its pairs of arms and its verdict.

    Attributes:
        p: before the correction for all tests.
        holm: after it.
    """

    claim: Claim
    pairs: Sequence[ArmPair]
    word: ClaimWord
    p: float
    holm: float


def judge_claims(
    section: CompareSection,
    baselines: Mapping[str, str],
    stages: Sequence[Look],
    family: Family,
    unit: str,
) -> list[dict[str, Any]]:
    """Return every claim of a recipe with its verdict, as plain values.

    Args:
        baselines: the baseline of each arm.
        stages: the runs up to each look.
        family: the tests with what came of them.
        unit: of the losses that are compared.
    """
    rows, level = [], stages[-1].level
    for claim in section.claims:
        found = [_pair(each, stages, family) for each in tests(claim, baselines, section)]
        right, wrong = _chances(found)
        word: ClaimWord = "not decided"
        if min(right[1], wrong[1]) < level.alpha:
            word = "holds" if right[1] <= wrong[1] else "fails"
        decisive = wrong if word == "fails" else right
        judged = JudgedClaim(claim=claim, pairs=found, word=word, p=decisive[0], holm=decisive[1])
        rows.append(_row(judged, level, unit if claim.measure == LOSS else unit_of(claim.measure)))
    return rows


def tests(
    claim: Claim, baselines: Mapping[str, str], section: CompareSection
) -> list[list[SidedTest]]:
    """Return the tests that a claim is made of, by its pairs."""
    up = -1 if section.is_higher_better(claim.measure) else 1
    return [_tests(claim, arm, baseline, up) for arm, baseline in pairs(claim, baselines)]


def _tests(claim: Claim, arm: str, baseline: str, up: int) -> list[SidedTest]:
    """Return the tests of a pair.

    Args:
        up: the side that is worse.
    """

    def at(shift: float) -> PairTest:
        return PairTest(arm, baseline, shift, claim.measure)

    if claim.relation == "alike":
        return [(at(claim.margin), -1), (at(-claim.margin), 1)]
    if claim.relation == "no better":
        return [(at(-up * claim.margin), up)]
    return [(at(0.0), up if claim.relation == "worse" else -up)]


def pairs(claim: Claim, baselines: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of arms that a claim is made of; of an order the better one comes first."""
    groups = [[one] if isinstance(one, str) else list(one) for one in claim.arms]
    if claim.relation == "order":
        for better, worse in pairwise(groups):
            yield from ((one, other) for one in better for other in worse)
    elif claim.relation == "alike" and groups:
        alone = all(len(group) == 1 for group in groups)
        for group in [[name for one in groups for name in one]] if alone else groups:
            yield from ((one, other) for i, one in enumerate(group) for other in group[i + 1 :])
    else:
        for arm in [claim.arm] if claim.arm else [name for group in groups for name in group]:
            yield arm, claim.against or baselines[arm]


def _pair(asked: Sequence[SidedTest], stages: Sequence[Look], family: Family) -> ArmPair:
    """Return a pair with the results of the last look at any of its tests."""
    test, stage = asked[0][0], stages[-1]
    judged = stages[max((family[one].look for one, _ in asked))]
    return ArmPair(
        arm=test.arm,
        baseline=test.baseline,
        evidence=judged.evidence(test),
        later=(
            None if judged is stage else stage.difference(test.arm, test.baseline, test.measure)
        ),
        asked=[(family[one], side) for one, side in asked],
        missing=stage.missing(test),
    )


def _chances(found: Sequence[ArmPair]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return p for the whole claim and against it, before and after the correction."""
    rights, wrongs = [pair.right for pair in found], [pair.wrong for pair in found]
    return max(rights, key=lambda both: both[1]), min(wrongs, key=lambda both: both[1])


def _row(judged: JudgedClaim, level: Level, unit: str) -> dict[str, Any]:
    claim = judged.claim
    named = dict.fromkeys(name for pair in judged.pairs for name in (pair.arm, pair.baseline))
    return {
        "source": claim.source,
        "says": claim.statement,
        "relation": claim.relation,
        "measure": claim.measure,
        "margin": claim.margin if claim.relation in _WITHIN else None,
        "arms": list(named),
        "verdict": judged.word,
        "said": _describe(judged, level, unit),
        "number": _decisive(judged).evidence.found.mean,
        "p": judged.p,
        "holm": judged.holm,
        "pairs": [pair.content() for pair in judged.pairs],
    }


def _describe(judged: JudgedClaim, level: Level, unit: str) -> str:
    """Describe the verdict in a sentence, with the number that decides it."""
    count, pair = len(judged.pairs), _decisive(judged)
    head = str(judged.word) + (" at this budget" if judged.word == "not decided" else "")
    if count > 1:
        head += f", {_share(judged, level)}"
    questions = is_scored(judged.claim.measure)
    later = describe_later(pair.later, pair.evidence, unit, questions=questions)
    parts = [
        f"{head}: {_describe_pair(judged, pair, level, unit)}",
        later,
        _describe_unfinished(judged),
    ]
    return "; ".join(part for part in parts if part) + "."


def _decisive(judged: JudgedClaim) -> ArmPair:
    """Return the surest pair against a claim that fails; else the one that is least sure."""
    if judged.word == "fails":
        return min(judged.pairs, key=lambda pair: pair.wrong[1])
    return max(judged.pairs, key=lambda pair: (pair.right[1], -pair.wrong[1]))


def _share(judged: JudgedClaim, level: Level) -> str:
    count = len(judged.pairs)
    if judged.word == "holds":
        return f"{count} of {count} pairs are as said; the least sure"
    if judged.word == "fails":
        contrary = sum(pair.wrong[0] < 1 for pair in judged.pairs)
        verb = "looks" if contrary == 1 else "look"
        return f"{contrary} of {count} pairs {verb} otherwise; the surest"
    sure = sum(pair.right[1] < level.alpha for pair in judged.pairs)
    return f"{sure} of {count} pairs surely as said; the least sure"


def _describe_pair(judged: JudgedClaim, pair: ArmPair, level: Level, unit: str) -> str:
    names = f"{pair.arm} against {pair.baseline}"
    found, lost, ended = pair.evidence.found, pair.evidence.lost, pair.evidence.ended
    if any(lost):
        return (
            f"{names}: {lost[0]} of {ended[0]} runs diverged against {lost[1]} of {ended[1]}, "
            f"p = {judged.holm:.2g} of the claim"
        )
    if found.mean is None:
        measure = judged.claim.measure
        lacking = " with a monitor" if measure != LOSS and is_watched(measure) else ""
        return f"no seed has finished for {pair.arm} and {pair.baseline} both{lacking}"
    margined = judged.claim.relation in _WITHIN
    within = f", with a margin of {judged.claim.margin:g}" if margined else ""
    if found.identical:
        seeds = describe_seeds(found.n)
        return f"{names}: a difference of exactly 0 at {seeds}{within}"
    size = f"{names}: {number(found.mean, sign=True)} {unit}{within}"
    if found.interval is None:
        same = "every seed shows the same, which tells nothing of chance"
        return f"{size}; {'one seed tells nothing of chance' if found.n == 1 else same}"
    return f"{size} ({_evidence(judged, pair, level)})"


def _evidence(judged: JudgedClaim, pair: ArmPair, level: Level) -> str:
    found, count = pair.evidence.found, level.comparisons
    text = describe_interval(found, questions=is_scored(judged.claim.measure))
    if count > 1:
        text += f", p = {judged.holm:.2g} of the claim after Holm's correction for {count} tests"
    else:
        text += f", p = {judged.holm:.2g} of the claim"
    return text + describe_pairing(found)


def _describe_unfinished(judged: JudgedClaim) -> str:
    missing = any(pair.missing for pair in judged.pairs)
    return "planned seeds are missing: this verdict is not final" if missing else ""
