"""A comparison in plain words: what it says of an arm, and what it cannot say."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from layerlab.training.statistics import MOST_SEEDS, Difference, Level

Word = Literal[
    "baseline",
    "better",
    "worse",
    "identical",
    "not distinguishable",
    "too few seeds",
    "no verdict",
]
Losses = Mapping[int, str]


@dataclass(frozen=True, kw_only=True)
class Case:
    """All that a verdict on one arm rests on.

    Attributes:
        arm: that is judged.
        baseline: that it is judged against.
        difference: between them, over the seeds that finished with a number.
        holm: p after the correction; None where there is none.
        level: what was asked for in advance.
        planned: seeds, fixed in advance.
        diverged: of the arm's seeds, with what happened.
        base_diverged: of the baseline's.
        missing: seeds of either side that have not finished.
        differ: declared settings in which runs differ beside the arm.
        unit: of the differences.
    """

    arm: str
    baseline: str
    difference: Difference
    holm: float | None
    level: Level
    planned: int
    diverged: Losses = field(default_factory=dict)
    base_diverged: Losses = field(default_factory=dict)
    missing: Sequence[int] = ()
    differ: Sequence[str] = ()
    unit: str = "nats"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A word to sort by, and a sentence to read.

    Attributes:
        word: the verdict.
        said: the sentence, with its numbers and its limits.
    """

    word: Word
    said: str


def judge(case: Case) -> Verdict:
    """The verdict on an arm."""
    word = _word(case)
    parts = [_sentence(case, word), _unfinished(case), _beside(case)]
    return Verdict(word=word, said="; ".join(part for part in parts if part) + ".")


def number(value: int | float, sign: bool = False) -> str:
    """Four decimals, or two digits of what is smaller than they show.

    Example:
        >>> number(0.01234), number(-0.000012), number(0.5, sign=True)
        ('0.0123', '-1.2e-05', '+0.5000')
    """
    style = ".4f" if value == 0 or abs(value) >= 1e-3 else ".2g"
    return format(value, f"+{style}" if sign else style)


def _word(case: Case) -> Word:
    found = case.difference
    if len(case.diverged) != len(case.base_diverged):
        return "worse" if len(case.diverged) > len(case.base_diverged) else "better"
    if case.diverged:
        return "no verdict"
    if found.n == 0 or found.mean is None:
        return "no verdict"
    if found.identical:
        return "identical"
    if found.n == 1:
        return "too few seeds"
    if case.holm is None:
        return "no verdict"
    if case.holm >= case.level.alpha:
        return "not distinguishable"
    return "better" if found.mean < 0 else "worse"


def _sentence(case: Case, word: Word) -> str:
    if case.diverged or case.base_diverged:
        return _divergence(case, word)
    if word == "no verdict":
        return _nothing(case)
    if word == "identical":
        seeds = _seeds(case.difference.n)
        return f"{case.arm} is identical to {case.baseline}: a difference of exactly 0 at {seeds}"
    if word == "too few seeds":
        return _few(case)
    if word == "not distinguishable":
        return _undecided(case)
    size = number(abs(case.difference.mean or 0))
    return f"{case.arm} is {word} than {case.baseline} by {size} {case.unit} ({_evidence(case)})"


def _divergence(case: Case, word: Word) -> str:
    told = [
        f"{name} diverged at {_listed(losses)} ({'; '.join(dict.fromkeys(losses.values()))})"
        for name, losses in ((case.arm, case.diverged), (case.baseline, case.base_diverged))
        if losses
    ]
    said = f"{case.arm} is {word} than {case.baseline}"
    if word == "no verdict":
        said = f"no verdict on {case.arm}"
    said += f": {', '.join(told)}"
    if case.difference.mean is not None:
        mean = number(case.difference.mean, sign=True)
        left = _seeds(case.difference.n)
        said += f"; over the {left} left the difference is {mean} {case.unit}"
    return said


def _nothing(case: Case) -> str:
    if case.difference.flat:
        mean = number(case.difference.mean or 0, sign=True)
        return (
            f"no verdict on {case.arm}: every seed shows the same difference of {mean} "
            f"{case.unit}, so the seeds did not vary the runs and tell nothing of chance"
        )
    return f"no verdict on {case.arm}: no seed has finished for it and {case.baseline} both"


def _few(case: Case) -> str:
    mean = number(case.difference.mean or 0, sign=True)
    return (
        f"too few seeds for a verdict ({case.difference.n}): {case.arm} ended {mean} {case.unit} "
        f"from {case.baseline}, but one pair cannot say how much of that is chance, nor how many "
        "seeds would tell: type compare.seeds = [1, 2, 3] or more"
    )


def _undecided(case: Case) -> str:
    found = case.difference
    said = (
        f"{case.arm} is not distinguishable from {case.baseline} at this budget: "
        f"{number(found.mean or 0, sign=True)} {case.unit} ({_evidence(case)})"
    )
    if found.low is not None and found.high is not None and not found.low <= 0 <= found.high:
        said += (
            "; the interval alone leaves 0 out, but not after the correction for "
            f"{case.level.comparisons} arms"
        )
    if found.detectable is not None:
        power = f"{case.level.power:.0%}".replace("%", " %")
        size = number(found.detectable)
        said += (
            f"; {_seeds(found.n)} find an effect of {size} or more with a probability of {power}"
        )
    return said + _more(case)


def _more(case: Case) -> str:
    found = case.difference
    if not found.mean:
        return ""
    if found.needed is None:
        return f"; if it is no larger than it looks, even {MOST_SEEDS:,} seeds would not tell"
    more = max(1, found.needed - found.n)
    seeds = "seed" if more == 1 else "seeds"
    return f"; if it is as large as it looks, {more:,} more {seeds} would tell"


def _evidence(case: Case) -> str:
    found = case.difference
    percent = f"{100 * case.level.confidence:g} %"
    told = f"{percent} interval {number(found.low or 0, True)} to {number(found.high or 0, True)}"
    if case.level.comparisons > 1:
        arms = case.level.comparisons
        told += f", p = {case.holm:.2g} after Holm's correction for {arms} arms"
    else:
        told += f", p = {case.holm:.2g}"
    told += f", {found.n} seed" if found.n == 1 else f", {found.n} seeds"
    return told + (", unpaired: the two share no seed" if found.kind == "welch" else "")


def _unfinished(case: Case) -> str:
    if not case.missing:
        return ""
    done = case.planned - len(set(case.missing))
    return f"{done} of {case.planned} planned seeds: this verdict is not final"


def _beside(case: Case) -> str:
    if not case.differ:
        return ""
    return (
        f"arms also differ in {', '.join(case.differ)}, so this is no comparison of variants alone"
    )


def _seeds(n: int) -> str:
    return f"{n} seed" if n == 1 else f"{n} seeds"


def _listed(losses: Losses) -> str:
    named = ", ".join(map(str, sorted(losses)))
    return f"seed {named}" if len(losses) == 1 else f"seeds {named}"
