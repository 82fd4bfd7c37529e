"""The verdict on an arm in plain words, and what cannot be said."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from layerlab.console.units import amount
from layerlab.experiments.analysis.arm_results import ArmResults
from layerlab.experiments.analysis.interim import Look
from layerlab.experiments.statistics.differences import MOST_SEEDS, Difference, Level
from layerlab.experiments.statistics.multiple_comparisons import (
    Evidence,
    Family,
    PairTest,
    PValue,
    tabulate_test,
)

VerdictWord = Literal[
    "baseline",
    "better",
    "worse",
    "larger",
    "smaller",
    "identical",
    "not distinguishable",
    "diverged",
    "too few seeds",
    "no verdict",
]
Losses = Mapping[int, str]


@dataclass(frozen=True, kw_only=True)
class Case:
    """All data that a verdict on one arm is based on.

    Attributes:
        arm: that is judged.
        baseline: that it is judged against.
        evidence: what the runs say of both.
        finding: what came of the test among all tests of the recipe.
        later: the difference over all seeds, where an earlier look has decided.
        level: what was asked for in advance.
        planned: seeds, fixed in advance.
        diverged: of the arm's seeds, with what happened.
        base_diverged: of the baseline's.
        missing: seeds of either side that have not finished.
        uncounted: of the two, those whose losses cannot be given in the unit.
        differ: declared settings in which runs differ beside the arm.
        has_look: whether a look that was planned has been taken.
        together: what is said where more than one slot differs between the two.
        scale: parameters and tokens that the verdict is about.
        unit: of the differences.
        words: for a difference below 0, and for one above.
        questions: whether it is over questions too, and not over a text.
        answers_alike: whether the two score every question alike.
        more_seeds: what to do where one seed is too few.
    """

    arm: str
    baseline: str
    evidence: Evidence
    finding: PValue
    level: Level
    planned: int
    later: Difference | None = None
    diverged: Losses = field(default_factory=dict)
    base_diverged: Losses = field(default_factory=dict)
    missing: Sequence[int] = ()
    uncounted: Sequence[str] = ()
    differ: Sequence[str] = ()
    has_look: bool = True
    together: str = ""
    scale: str = ""
    unit: str = "nats"
    words: tuple[VerdictWord, VerdictWord] = ("better", "worse")
    questions: bool = False
    answers_alike: bool = False
    more_seeds: str = "type compare.seeds = [1, 2, 3] or more"

    @property
    def difference(self) -> Difference:
        """The difference of the two arms, over the seeds that ended with a number."""
        return self.evidence.found


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A word to sort by, and a sentence to read.

    Attributes:
        word: the verdict.
        said: the sentence, with its numbers and its limits.
    """

    word: VerdictWord
    said: str


def open_case(test: PairTest, stages: Sequence[Look], family: Family, **beside: Any) -> Case:
    """Return the case of a test: what the look that judged it says, and what has come since."""
    stage, finding = stages[-1], family[test]
    judged = stages[finding.look]
    return Case(
        evidence=judged.evidence(test),
        finding=finding,
        later=None if judged is stage else stage.evidence(test).found,
        level=stage.level,
        planned=len(stage.section.seeds),
        missing=stage.missing(test),
        has_look=family.has_look,
        **{"arm": test.arm, "baseline": test.baseline, **beside},
    )


def judge(case: Case, say: Callable[[Case, VerdictWord], str] | None = None) -> Verdict:
    """Return the verdict on an arm.

    Args:
        say: makes the sentence of a word; that on a difference where it is left out.
    """
    word = _word(case)
    parts = [
        (say or _sentence)(case, word),
        describe_later(case.later, case.evidence, case.unit, questions=case.questions),
        case.scale,
        case.together,
        _describe_unfinished(case),
        _beside(case),
    ]
    return Verdict(word=word, said="; ".join(part for part in parts if part) + ".")


def tabulate_case(
    case: Case, say: Callable[[Case, VerdictWord], str] | None = None
) -> dict[str, Any]:
    """Return a case and its verdict as they stand in `comparison.json`.

    Args:
        say: as for `judge`.
    """
    verdict = judge(case, say)
    return {
        **tabulate_test(case.difference, case.finding.corrected),
        "missing": list(case.missing),
        "verdict": verdict.word,
        "said": verdict.said,
    }


def number(value: int | float, sign: bool = False) -> str:
    """Format a number with four decimals, two digits if it is smaller, or one decimal from 100 on.

    Example:
        >>> number(0.01234), number(-0.000012), number(0.5, sign=True), number(150.94)
        ('0.0123', '-1.2e-05', '+0.5000', '150.9')
        >>> number(-0.0, sign=True)
        '+0.0000'
    """
    style = ".4f" if value == 0 or abs(value) >= 1e-3 else ".2g"
    style = ".1f" if abs(value) >= 100 else style
    return format(value + 0, f"+{style}" if sign else style)  # plus 0: no zero has a sign


def _word(case: Case) -> VerdictWord:
    found, decided = case.difference, case.finding
    if not case.has_look:
        return "no verdict"
    if decided.corrected < case.level.alpha and decided.side:
        return case.words[decided.side > 0]
    if case.diverged or case.base_diverged:
        return "diverged"
    if found.mean is None:
        return "no verdict"
    if found.identical or case.answers_alike:
        return "identical"
    if found.n == 1:
        return "too few seeds"
    return "no verdict" if found.p is None else "not distinguishable"


def _sentence(case: Case, word: VerdictWord) -> str:
    if case.has_look and (case.diverged or case.base_diverged):
        return _divergence(case, word)
    if word == "no verdict":
        lack = explain_lack(case, f"no seed has finished for it and {case.baseline} both")
        return f"no verdict on {case.arm}: {lack}"
    if word == "identical":
        seeds = describe_seeds(case.difference.n)
        return f"{case.arm} is identical to {case.baseline}: a difference of exactly 0 at {seeds}"
    if word == "too few seeds":
        return _few(case)
    if word == "not distinguishable":
        return _describe_undecided(case)
    size, evidence = number(abs(case.difference.mean or 0)), describe_evidence(case)
    return f"{case.arm} is {word} than {case.baseline} by {size} {case.unit} ({evidence})"


def _divergence(case: Case, word: VerdictWord) -> str:
    sides = [
        f"{name} diverged at {_list(losses)} ({'; '.join(dict.fromkeys(losses.values()))})"
        for name, losses in ((case.arm, case.diverged), (case.baseline, case.base_diverged))
        if losses
    ]
    sentence = f"{case.arm} is {word} than {case.baseline}"
    if word == "diverged":
        sentence = f"no verdict on {case.arm}"
    sentence += f": {', '.join(sides)}"
    evidence, found = case.evidence, case.difference
    lost, ended = evidence.lost, evidence.ended
    sentence += (
        f"; {lost[0]} of {ended[0]} runs against {lost[1]} of {ended[1]}, "
        f"Fisher's exact p = {evidence.divergence:.2g}"
    )
    if found.mean is not None:
        mean = number(found.mean, sign=True)
        left = describe_seeds(found.n)
        sentence += f"; over the {left} left the difference is {mean} {case.unit}"
        sentence += f" ({describe_evidence(case)})" if found.interval else ""
    return sentence


def explain_lack(case: Case, nothing: str) -> str:
    """Say why there is no verdict.

    Args:
        nothing: what is said where no seed has a number for all arms.
    """
    if not case.has_look:
        return "the seeds of the first look have not all finished"
    if case.difference.n == 1:
        return "one seed cannot say how much of the difference is chance"
    if case.difference.flat:
        mean = number(case.difference.mean or 0, sign=True)
        return (
            f"every seed shows the same difference of {mean} {case.unit}, and tells nothing of "
            "chance"
        )
    return explain_uncounted(case.uncounted, case.unit) if case.uncounted else nothing


def explain_uncounted(arms: Sequence[str], unit: str) -> str:
    """Say why arms have no loss in the unit of a comparison."""
    return (
        f"the held-out text does not come back from the tokens of {' and '.join(arms)}, so that "
        f"their loss is not known in {unit}"
    )


def _few(case: Case) -> str:
    mean = number(case.difference.mean or 0, sign=True)
    who = "one pair" if case.difference.kind == "paired" else "one seed of either"
    more_seeds = "the planned ones have not all finished" if case.missing else case.more_seeds
    return (
        f"too few seeds for a verdict ({case.difference.n}): {case.arm} ended {mean} {case.unit} "
        f"from {case.baseline}, but {who} cannot say how much of that is chance, or how many "
        f"seeds would be needed: {more_seeds}"
    )


def _describe_undecided(case: Case) -> str:
    found, evidence = case.difference, describe_evidence(case)
    sentence = (
        f"{case.arm} is not distinguishable from {case.baseline} at this budget: "
        f"{number(found.mean or 0, sign=True)} {case.unit} ({evidence})"
    )
    if found.low is not None and found.high is not None and not found.low <= 0 <= found.high:
        sentence += (
            "; the interval alone leaves 0 out, but not after the correction for "
            f"{case.level.comparisons} tests"
        )
    return sentence + describe_power(case)


def describe_power(case: Case) -> str:
    """Describe what so many seeds find, and how many more would confirm what was observed."""
    found, sentence = case.difference, ""
    if found.detectable is not None:
        low, high = map(number, found.detectable)
        seeds = describe_seeds(found.n)
        sentence += (
            f"; {seeds} find an effect of {low} to {high} with a probability of "
            f"{_percent(case.level.power)} (a range, as sigma is an estimate)"
        )
    return sentence + _more(case)


def _more(case: Case) -> str:
    found = case.difference
    if found.needed is None:
        return ""
    least, most = found.needed
    if least is None:
        sentence = f"; even {MOST_SEEDS:,} seeds would not confirm the observed difference"
        more = "; more questions might" if case.questions else "; more held-out text might"
        return sentence + more if found.limited_by_text else sentence
    start = max(1, least - found.n)
    if most is None:
        more = f"at least {start:,} more seeds"
    else:
        end = max(1, most - found.n)
        seeds = describe_seeds(start)
        more = f"{start:,} to {end:,} more seeds" if end > start else f"{seeds} more"
    return f"; confirming the observed difference with that probability would need {more}"


def describe_evidence(case: Case) -> str:
    """Describe what a verdict rests on: the interval, p and the seeds."""
    found = case.difference
    text, holm = describe_interval(found, questions=case.questions), case.finding.corrected
    if case.level.comparisons > 1:
        tests = case.level.comparisons
        text += f", p = {holm:.2g} after Holm's correction for {tests} tests"
    else:
        text += f", p = {holm:.2g}"
    return text + describe_pairing(found)


def describe_pairing(found: Difference) -> str:
    """Describe how many seeds a difference rests on, and whether they are paired."""
    count = f", {found.n} seed" if found.n == 1 else f", {found.n} seeds"
    return count + (", unpaired: no seed has a number for both" if found.kind == "welch" else "")


def describe_later(
    later: Difference | None, decided: Evidence, unit: str, *, questions: bool = False
) -> str:
    """Describe what seeds after the deciding look say; the verdict stays.

    Args:
        later: over all seeds; None where the last look decided.
        decided: at the look that did.
        questions: as for `describe_interval`.
    """
    if later is None or later.mean is None:
        return ""
    mean, seeds = number(later.mean, sign=True), describe_seeds(later.n)
    seeds_then = describe_seeds(decided.seeds)
    sentence = f"decided by the look at {seeds_then}; over {seeds} it is {mean} {unit}"
    interval = describe_interval(later, questions=questions)
    sentence += f" ({interval})" if later.interval else ""
    if later.mean * (decided.found.mean or 0.0) < 0:
        sentence += ", on the other side of 0: doubt the word"
    return sentence


def describe_interval(found: Difference, *, questions: bool = False) -> str:
    """Describe the interval, and how much of it is due to seeds and to text.

    Args:
        questions: it is over questions, and not over a text.
    """
    low, high = found.interval or (0.0, 0.0)
    uncertainty = (
        f"{_percent(found.level.confidence)} interval {number(low, True)} to {number(high, True)}"
    )
    if found.text is None or not found.error:
        return uncertainty
    seeds, text = number(found.error), number(found.text[0])
    if questions:
        return f"{uncertainty}, standard error {seeds} by seeds and {text} by questions"
    return f"{uncertainty}, standard error {seeds} by seeds and {text} by held-out text"


def describe_scale(side: ArmResults) -> str:
    """Describe the scale that a verdict is about: parameters and tokens."""
    parameters, tokens = side.most("parameters"), side.most("tokens")
    if parameters is None or tokens is None:
        return ""
    return f"at {amount(parameters)} parameters and {amount(tokens)} tokens a run"


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


def _describe_unfinished(case: Case) -> str:
    if not case.missing:
        return ""
    done = case.planned - len(case.missing)
    return f"{done} of {case.planned} planned seeds: this verdict is not final"


def _beside(case: Case) -> str:
    if not case.differ:
        return ""
    return (
        f"arms also differ in {', '.join(case.differ)}, so this is no comparison of variants alone"
    )


def describe_seeds(n: int) -> str:
    """Return how many seeds there are, in words."""
    return f"{n} seed" if n == 1 else f"{n} seeds"


def _list(losses: Losses) -> str:
    named = ", ".join(map(str, sorted(losses)))
    return f"seed {named}" if len(losses) == 1 else f"seeds {named}"
