"""A campaign as read from its ledger: the ideas, their trials, and the error left."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from layerlab.errors import UserError
from layerlab.experiments.statistics.differences import Level, required_seeds
from layerlab.experiments.statistics.online_levels import fallback_level, lord_level
from layerlab.ledger.chain import Chain, Line
from layerlab.validation import short_repr, suggest

TrialStage = Literal["screening", "confirmation"]
Direction = Literal["lower", "higher"]
IdeaWord = Literal["adopted", "refuted", "undecided"]
LOSS = "loss"  # the measure of an idea for which none is named
DIGITS = 20  # of a seed, at most: those of 64 bits
# What the first runs of an idea must show so that a confirmation is worth its runs. Nothing is
# claimed by them, so that their level takes nothing of what the campaign may err.
SCREEN = 0.1


@dataclass(frozen=True, kw_only=True)
class CampaignTerms:
    """Terms that hold for all ideas of a campaign.

    Attributes:
        baseline: arm that ideas are judged against.
        fdr: share of false ones among all that is adopted, on average, at most.
        alpha: probability that anything is adopted where nothing works, at most.
        never: whether alpha is that of any false adoption, whatever else works.
        loss: column that is judged; found by its usual names where it is None.
        at: step at which runs are judged; the last where it is None.
        last: readings whose mean is judged.
        better: of what is judged; of ledgers of earlier versions, None, it is lower.
    """

    baseline: str
    fdr: float = 0.1
    alpha: float = 0.05
    never: bool = False
    loss: str | None = None
    at: float | None = None
    last: int = 1
    better: Direction | None = None


@dataclass(frozen=True, kw_only=True)
class IdeaVerdict:
    """Verdict of runs on an idea.

    Attributes:
        idea: that was judged.
        stage: of the trial.
        verdict: adopted, or refuted where it is worse or the same, or undecided. That it is worse
            is said at alpha, and not corrected over the campaign: nothing is built on it.
        said: the same in a sentence, with its numbers.
        level: that p had to reach.
        p: one-sided, that the idea is no better.
        difference: of its mean to the baseline's; below 0 is better, or above of a score.
        low: end of the 95 % interval of it.
        high: the other end.
        seeds: that were judged.
        next: what to do: confirm, or nothing.
        remarks: on the runs.
        runs: digest of the numbers that were judged.
        step: at which; of verdicts of earlier versions, None, it is not known.
        read: what was judged there: the names of the loss and of the step, `--line`, the steps of a
            mean.
    """

    idea: str
    stage: TrialStage
    verdict: IdeaWord
    said: str
    level: float
    p: float
    difference: float | None
    low: float | None
    high: float | None
    seeds: tuple[int, ...]
    next: Literal["confirm", "nothing"]
    remarks: tuple[str, ...]
    runs: str
    step: float | None = None
    read: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {**asdict(self), "seeds": list(self.seeds), "remarks": list(self.remarks)}


@dataclass(frozen=True, kw_only=True)
class IdeaTrial:
    """Runs of an idea as they were written down before they were made.

    Attributes:
        idea: that is tried.
        stage: the first runs, or fresh ones that may lead to its adoption.
        seeds: of the runs.
        level: that p has to reach, fixed when the trial was written down.
        measure: that is judged.
        says: what is changed.
        time: when it was written down.
        verdict: what came of it; None before.
    """

    idea: str
    stage: TrialStage
    seeds: tuple[int, ...]
    level: float
    measure: str
    says: str
    time: str
    verdict: IdeaVerdict | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        verdict = None if self.verdict is None else self.verdict.to_dict()
        return {**asdict(self), "seeds": list(self.seeds), "verdict": verdict}


@dataclass(frozen=True, kw_only=True)
class WealthStep:
    """Wealth that a line of the ledger left to spend.

    Attributes:
        tried: ideas that were written down by then.
        idea: that the line is about.
        kind: a confirmation takes its level, an adoption brings something back.
        wealth: left after it.
    """

    tried: int
    idea: str
    kind: Literal["confirmation", "adopted"]
    wealth: float


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """A ledger, read.

    Attributes:
        folder: of it.
        terms: that hold for all ideas.
        trials: in the order in which they were written down.
        tests: confirmations that were written down.
        found: of the adopted, how many confirmations had been written down when each was known.
        kept: levels of the adopted that no later confirmation has taken over.
        spending: what each confirmation and adoption left to spend, in their order.
        readings: by arm, digest of a run's readings and the step up to which they were judged, the
            seed that was judged with them first.
        seen: by seed whose runs stood in logs that were judged, the idea that they were judged for.
        digest: of the last line, which stands for all.
        remark: what is wrong with the file and loses nothing; empty where all is well.
    """

    folder: str
    terms: CampaignTerms
    trials: tuple[IdeaTrial, ...]
    tests: int
    found: tuple[int, ...]
    kept: float
    spending: tuple[WealthStep, ...]
    readings: Mapping[tuple[str, str, float | None], str]
    seen: Mapping[int, str]
    digest: str
    remark: str = ""

    @property
    def ideas(self) -> dict[str, list[IdeaTrial]]:
        """The trials of each idea."""
        ideas: dict[str, list[IdeaTrial]] = {}
        for one in self.trials:
            ideas.setdefault(one.idea, []).append(one)
        return ideas

    @property
    def used_seeds(self) -> dict[int, str]:
        """By seed, the idea that it was first written down for, or in whose logs it was seen."""
        used: dict[int, str] = {}
        for one in self.trials:
            for seed in one.seeds:
                used.setdefault(seed, one.idea)
        return {**self.seen, **used}

    @property
    def next_level(self) -> float:
        """The level of the next confirmation."""
        number = self.tests + 1
        if self.terms.never:
            return fallback_level(number, self.kept, alpha=self.terms.alpha)
        return lord_level(number, self.found, rate=self.terms.fdr, first=self.terms.alpha)

    @property
    def needed_seeds(self) -> tuple[int | None, int | None]:
        """Seeds that find a gain of one standard deviation: first ones, and the next fresh ones."""
        return count_seeds(SCREEN), count_seeds(self.next_level)

    @property
    def wealth(self) -> float:
        """Return the wealth that is left for later confirmations."""
        return self.spending[-1].wealth if self.spending else self.terms.alpha

    def find(self, idea: str) -> list[IdeaTrial]:
        """Return the trials of an idea.

        Raises:
            UserError: it was never written down.
        """
        ideas = self.ideas
        if idea not in ideas:
            raise UserError(
                f"no idea {short_repr(idea)} is written down in {self.folder}; "
                f"{suggest(idea, ideas)}type layerlab ledger add {self.folder} IDEA --says TEXT "
                "--seeds 1,2,3 before its runs"
            )
        return ideas[idea]

    def count(self) -> dict[str, int]:
        """Return how many ideas have each word."""
        verdicts = [find_word(trials) for trials in self.ideas.values()]
        return {word: verdicts.count(word) for word in ("adopted", "refuted", "undecided")}

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "folder": self.folder,
            **asdict(self.terms),
            "tried": len(self.ideas),
            **self.count(),
            "confirmations": self.tests,
            "wealth": self.wealth,
            "next_level": self.next_level,
            "needed_seeds": dict(zip(("first", "fresh"), self.needed_seeds, strict=True)),
            "spending": [asdict(one) for one in self.spending],
            "digest": self.digest,
            "remark": self.remark,
            "ideas": [
                {"idea": name, "verdict": find_word(trials), "next": find_next(trials)}
                | {"says": trials[0].says, "trials": [one.to_dict() for one in trials]}
                for name, trials in self.ideas.items()
            ],
        }


def count_seeds(level: float) -> int | None:
    """Return how many seeds find a gain with a probability of 80 %; None beyond a million.

    The gain is one standard deviation of the differences.

    Args:
        level: that p has to reach, one-sided.

    Example:
        >>> count_seeds(0.1), count_seeds(0.0219)
        (6, 11)
    """
    one_sided = Level(confidence=1 - 2 * level)
    return required_seeds(1.0, lambda n: (n**-0.5, n - 1), one_sided)


def find_word(trials: Sequence[IdeaTrial]) -> IdeaWord:
    """Return what is known of an idea; it is undecided until runs say otherwise."""
    verdict = trials[-1].verdict
    return "undecided" if verdict is None else verdict.verdict


def find_next(trials: Sequence[IdeaTrial]) -> str:
    """Return what to do for an idea: judge, confirm or nothing."""
    verdict = trials[-1].verdict
    return "judge" if verdict is None else verdict.next


def replay(chain: Chain) -> Campaign:
    """Return the campaign that the lines of a ledger tell of.

    Raises:
        UserError: a line is of a later version of layerlab.
    """
    try:
        return _replay(chain)
    except (KeyError, TypeError, ValueError, StopIteration):
        raise UserError(
            f"the ledger in {chain.folder} has lines that this version of layerlab does not know; "
            "install the one that wrote them"
        ) from None


def _replay(chain: Chain) -> Campaign:
    rest: Iterator[Line] = iter(chain.lines)
    terms = CampaignTerms(**next(rest)["terms"])
    trials: list[IdeaTrial] = []
    tests, kept, wealth = 0, 0.0, terms.alpha
    found: list[int] = []
    spending: list[WealthStep] = []
    ideas: set[str] = set()
    readings: dict[tuple[str, str, float | None], str] = {}
    seen: dict[int, str] = {}
    for line in rest:
        if line["kind"] == "trial":
            trial = _read_trial(line)
            trials.append(trial)
            ideas.add(trial.idea)
            if trial.stage == "confirmation":
                tests, kept, wealth = tests + 1, 0.0, wealth - trial.level
                spending.append(
                    WealthStep(
                        tried=len(ideas), idea=trial.idea, kind="confirmation", wealth=wealth
                    )
                )
            continue
        verdict = _read_verdict(line["verdict"])
        for arm, seed, digest in line.get("readings", ()):  # earlier versions kept none
            readings.setdefault((arm, digest, verdict.step), seed)
        for seed in line.get("seen", ()):
            seen.setdefault(seed, verdict.idea)
        index = max(n for n, one in enumerate(trials) if one.idea == verdict.idea)
        judged = trials[index]
        trials[index] = replace(judged, verdict=verdict)
        if verdict.verdict == "adopted":
            wealth += _bring_back(terms, judged.level, first=not found)
            found.append(tests)
            kept += judged.level
            spending.append(
                WealthStep(tried=len(ideas), idea=verdict.idea, kind="adopted", wealth=wealth)
            )
    cut = f"the last line was cut off while it was written ({len(chain.cut)} characters)"
    return Campaign(
        folder=str(chain.folder),
        terms=terms,
        trials=tuple(trials),
        tests=tests,
        found=tuple(found),
        kept=kept,
        spending=tuple(spending),
        readings=readings,
        seen=seen,
        digest=chain.digest,
        remark=f"{cut}; it does not count, and the next one goes on after it" if chain.cut else "",
    )


def _bring_back(terms: CampaignTerms, level: float, *, first: bool) -> float:
    """Return what an adoption brings back: its level, or the rate of LORD++."""
    if terms.never:
        return level
    return terms.fdr - (terms.alpha if first else 0.0)


def _read_trial(line: Mapping[str, Any]) -> IdeaTrial:
    given = {name: line[name] for name in IdeaTrial.__dataclass_fields__ if name != "verdict"}
    return IdeaTrial(**{**given, "seeds": tuple(given["seeds"])})


def _read_verdict(given: Mapping[str, Any]) -> IdeaVerdict:
    lists = {"seeds": tuple(given["seeds"]), "remarks": tuple(given["remarks"])}
    return IdeaVerdict(**{**given, **lists})
