"""What sources say of arms, judged by runs: each claim holds, fails, or is not decided.

A claim is made of pairs of arms. It holds where every pair is as it says, and fails where one is
surely not. Its p is the largest of its pairs in the first case, and in the second the smallest
times their number; Holm corrects it for all claims of a recipe. That two arms are alike is a claim
as well: their difference must lie within a margin (two one-sided tests), so it can be shown.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from layerlab.training.record import Record
from layerlab.training.section import Claim, CompareSection
from layerlab.training.side import Side
from layerlab.training.statistics import Difference, Level, against, holm
from layerlab.training.verdict import number

Word = Literal["holds", "fails", "not decided"]
Values = Mapping[int, float]
SPIKES = "loss spikes a run"
# Relations that a margin belongs to.
_WITHIN = ("alike", "no better")


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two arms of a claim.

    Attributes:
        arm: that it says something of.
        rival: that it is held against.
        found: the difference between them.
        right: p of the pair being as it is said to be; 1 where it does not look so.
        wrong: p of its being otherwise; 1 where it does not look so.
        lost: seeds that diverged, of the arm and of its rival.
        missing: seeds of either that have not finished.
    """

    arm: str
    rival: str
    found: Difference
    right: float
    wrong: float
    lost: tuple[int, int] = (0, 0)
    missing: Sequence[int] = ()

    def content(self) -> dict[str, Any]:
        """As plain values."""
        found = self.found
        return {
            "arm": self.arm,
            "against": self.rival,
            "n": found.n,
            "difference": found.mean,
            "low": found.low,
            "high": found.high,
            "p": found.p,
            "as_said": self.right,
            "otherwise": self.wrong,
            "missing": list(self.missing),
        }


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A claim with its pairs and what came out.

    Attributes:
        p: before the correction for all claims.
        holm: after it.
    """

    claim: Claim
    pairs: Sequence[Pair]
    word: Word
    p: float
    holm: float


def claimed(
    section: CompareSection, rivals: Mapping[str, str], sides: Mapping[str, Side], unit: str
) -> list[dict[str, Any]]:
    """Every claim of a recipe with its verdict, as plain values.

    Args:
        rivals: the baseline of each arm.
        unit: of the losses that are compared.
    """
    level = Level(
        confidence=section.confidence, power=section.power, comparisons=max(1, len(section.claims))
    )
    planned = section.rates if section.search == "grid" else ()
    found = [
        [
            _pair(claim, sides[arm], sides[rival], level, (section.seeds, planned))
            for arm, rival in pairs(claim, rivals)
        ]
        for claim in section.claims
    ]
    raw = [_p(each) for each in found]
    corrected = holm([min(both) for both in raw])
    rows = []
    for claim, each, both, after in zip(section.claims, found, raw, corrected, strict=True):
        word = _word(both, after, level)
        judged = Judged(claim=claim, pairs=each, word=word, p=min(both), holm=after)
        rows.append(_row(judged, level, SPIKES if claim.measure == "spikes" else unit))
    return rows


def pairs(claim: Claim, rivals: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The pairs of arms that a claim is made of; of an order the better one comes first."""
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
            yield arm, claim.against or rivals[arm]


def _pair(
    claim: Claim,
    side: Side,
    base: Side,
    level: Level,
    planned: tuple[Sequence[int], Sequence[float]],
) -> Pair:
    ours, theirs = _values(claim, side), _values(claim, base)
    found = against(ours, theirs, level)
    lost = len(side.diverged), len(base.diverged)
    if any(lost):
        right, wrong = _by_loss(claim, lost)
    else:
        right, wrong = _chances(claim, found, ours, theirs, level)
    return Pair(
        arm=side.name,
        rival=base.name,
        found=found,
        right=right,
        wrong=wrong,
        lost=lost,
        missing=sorted({*side.missing(*planned), *base.missing(*planned)}),
    )


def _values(claim: Claim, side: Side) -> Values:
    if claim.measure == "loss":
        return side.values
    return {seed: _spikes(run) for seed, run in side.runs.items() if run.finished and _heard(run)}


def _heard(run: Record) -> bool:
    """Whether spikes were listened for at all."""
    return bool(run.manifest["recipe"].get("monitor", {}).get("every"))


def _spikes(run: Record) -> float:
    alarms = (one for one in run.events if one.get("kind") == "alarm")
    return float(sum(one.get("measure") == "loss" for one in alarms))


def _by_loss(claim: Claim, lost: tuple[int, int]) -> tuple[float, float]:
    """Where more seeds of one side diverged, it is worse, whatever the others ended at."""
    if lost[0] == lost[1]:
        return 1.0, 1.0
    worse = lost[0] > lost[1]
    right = worse if claim.relation in ("worse", "no better") else not worse
    return (0.0, 1.0) if right and claim.relation != "alike" else (1.0, 0.0)


def _chances(
    claim: Claim, found: Difference, ours: Values, theirs: Values, level: Level
) -> tuple[float, float]:
    """Probabilities of a pair being as it is said to be, and of its being otherwise."""
    below, above = _toward(found, -1), _toward(found, 1)
    if claim.relation not in _WITHIN:
        return (above, below) if claim.relation == "worse" else (below, above)
    if found.identical:
        return 0.0, 1.0
    margin, mean = claim.margin, found.mean or 0.0
    # A shifted arm is tested like any other: its mean is then that of the difference to the margin.
    floor = _toward(against(_shifted(ours, margin), theirs, level), 1)
    if claim.relation == "no better":
        return floor, below if mean < -margin else 1.0
    ceiling = _toward(against(_shifted(ours, -margin), theirs, level), -1)
    return max(floor, ceiling), min(below, above) if abs(mean) > margin else 1.0


def _toward(found: Difference, sign: int) -> float:
    """Two-sided p where the difference has this sign; 1 where not, or where nothing was tested."""
    if found.p is None or found.mean is None or found.mean * sign <= 0:
        return 1.0
    return found.p


def _shifted(values: Values, by: float) -> dict[int, float]:
    return {seed: value + by for seed, value in values.items()}


def _p(found: Sequence[Pair]) -> tuple[float, float]:
    """Of the whole claim: p of its being right, and of its being wrong."""
    right = max(pair.right for pair in found)
    wrong = len(found) * min(pair.wrong for pair in found)
    return right, min(1.0, wrong)


def _word(both: tuple[float, float], corrected: float, level: Level) -> Word:
    if corrected >= level.alpha:
        return "not decided"
    right, wrong = both
    return "holds" if right <= wrong else "fails"


def _row(judged: Judged, level: Level, unit: str) -> dict[str, Any]:
    claim = judged.claim
    named = dict.fromkeys(name for pair in judged.pairs for name in (pair.arm, pair.rival))
    return {
        "source": claim.source,
        "says": claim.says,
        "relation": claim.relation,
        "measure": claim.measure,
        "margin": claim.margin if claim.relation in _WITHIN else None,
        "arms": list(named),
        "verdict": judged.word,
        "said": _said(judged, level, unit),
        "number": _decisive(judged).found.mean,
        "p": judged.p,
        "holm": judged.holm,
        "pairs": [pair.content() for pair in judged.pairs],
    }


def _said(judged: Judged, level: Level, unit: str) -> str:
    """The verdict in a sentence, with the number that decides it."""
    count, told = len(judged.pairs), _decisive(judged)
    head = str(judged.word) + (" at this budget" if judged.word == "not decided" else "")
    if count > 1:
        head += f", {_share(judged, level)}"
    parts = [f"{head}: {_pair_said(judged, told, level, unit)}", _unfinished(judged)]
    return "; ".join(part for part in parts if part) + "."


def _decisive(judged: Judged) -> Pair:
    """The surest pair against a claim that fails; else the one that is least sure."""
    if judged.word == "fails":
        return min(judged.pairs, key=lambda pair: pair.wrong)
    return max(judged.pairs, key=lambda pair: (pair.right, -pair.wrong))


def _share(judged: Judged, level: Level) -> str:
    count = len(judged.pairs)
    if judged.word == "holds":
        return f"{count} of {count} pairs are as said; the least sure"
    if judged.word == "fails":
        contrary = sum(pair.wrong < 1 for pair in judged.pairs)
        verb = "looks" if contrary == 1 else "look"
        return f"{contrary} of {count} pairs {verb} otherwise; the surest"
    alone = sum(pair.right < level.alpha for pair in judged.pairs)
    verb = "is" if alone == 1 else "are"
    return f"{alone} of {count} pairs {verb} as said, each judged alone; the least sure"


def _pair_said(judged: Judged, pair: Pair, level: Level, unit: str) -> str:
    names = f"{pair.arm} against {pair.rival}"
    if any(pair.lost):
        return f"{names}: {pair.lost[0]} seeds diverged against {pair.lost[1]}"
    found = pair.found
    if found.mean is None or found.n == 0:
        lacking = " with a monitor" if judged.claim.measure == "spikes" else ""
        return f"no seed has finished for {pair.arm} and {pair.rival} both{lacking}"
    within = f", with a margin of {judged.claim.margin:g}" if _margined(judged) else ""
    if found.identical:
        return f"{names}: a difference of exactly 0 at {_seeds(found.n)}{within}"
    size = f"{names}: {number(found.mean, sign=True)} {unit}{within}"
    if found.low is None or found.high is None:
        same = "every seed shows the same, which tells nothing of chance"
        return f"{size}; {'one seed tells nothing of chance' if found.n == 1 else same}"
    return f"{size} ({_evidence(judged, pair, level)}){_more(judged, pair)}"


def _margined(judged: Judged) -> bool:
    return judged.claim.relation in _WITHIN


def _evidence(judged: Judged, pair: Pair, level: Level) -> str:
    found, claims = pair.found, level.comparisons
    percent = f"{100 * level.confidence:g} %"
    told = f"{percent} interval {number(found.low or 0, True)} to {number(found.high or 0, True)}"
    if claims > 1:
        told += f", p = {judged.holm:.2g} of the claim after Holm's correction for {claims} claims"
    else:
        told += f", p = {judged.holm:.2g} of the claim"
    told += f", {found.n} seed" if found.n == 1 else f", {found.n} seeds"
    return told + (", unpaired: the two share no seed" if found.kind == "welch" else "")


def _more(judged: Judged, pair: Pair) -> str:
    """How many more seeds would tell, where a difference is what is looked for."""
    found = pair.found
    if judged.word != "not decided" or _margined(judged) or len(judged.pairs) > 1:
        return ""
    if found.needed is None or found.needed <= found.n:
        return ""
    more = found.needed - found.n
    seeds = "seed" if more == 1 else "seeds"
    return f"; if it is as large as it looks, {more:,} more {seeds} would tell"


def _unfinished(judged: Judged) -> str:
    missing = any(pair.missing for pair in judged.pairs)
    return "planned seeds are missing: this verdict is not final" if missing else ""


def _seeds(n: int) -> str:
    return f"{n} seed" if n == 1 else f"{n} seeds"
