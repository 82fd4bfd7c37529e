"""The sections of a comparison: arms, claims of sources, and what is held equal."""

import hashlib
import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from layerlab.recipes.compared_measures import (
    COMMAND,
    STEP_UNIT,
    check_measure,
    is_scored,
    parse_measure,
)
from layerlab.recipes.training_sections import Count, Name, Positive, Section, Whole
from layerlab.validation import suggest

MODEL = "{model}"  # in a command, the folder of the model
_OPTION = re.compile(r"[^/]+=")


def _check_claimed(name: str) -> str:
    return name if name == "loss" else check_measure(name)


class Arm(Section):
    """One arm of a comparison: a variant, and other settings that it changes.

    Attributes:
        name: in tables and pictures; the variant's where it is left out.
        variant: the model section's where it is left out.
        against: the arm that it is judged against; the baseline where it is left out. Arms of
            several sizes have one each.
        options: of the variant.
        set: other settings of the recipe by their paths, as `{"train.batch_size" = 8}`; a
            comparison refuses those that `compare.allowed_differences` does not name.
    """

    name: str | None = None
    variant: str | None = None
    against: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    set: dict[str, Any] = Field(default_factory=dict)


class Claim(Section):
    """A statement of a source about arms, which runs confirm or refute.

    Attributes:
        source: its key in docs/sources.md and the place, as `pangu23, Table 2`.
        statement: the claim, in words of one's own.
        relation: of the arm to what it is held against. `alike` is within the margin; `no better`
            is not better by more than the margin; `order` ranks `arms`, the best first.
        arm: that it is about.
        arms: in place of one arm. Of `order`, a list inside of it holds arms that are not ranked
            among each other; of `alike`, arms that are alike.
        against: the arm that it is held against; the arm's baseline where it is left out.
        margin: in the unit of the comparison, below which a difference counts as none.
        measure: what is compared: the `loss` at the end, or one of `measures` below.
    """

    source: Name
    statement: Name
    relation: Literal["better", "worse", "no better", "alike", "order"]
    arm: str | None = None
    arms: tuple[str | tuple[str, ...], ...] = ()
    against: str | None = None
    margin: Positive = 0.02
    measure: Annotated[str, AfterValidator(_check_claimed), Field(examples=["spikes"])] = "loss"

    @model_validator(mode="after")
    def _whole(self) -> "Claim":
        if self.relation == "order" and len(self.arms) < 2:
            raise ValueError(
                f"the claim {self.statement!r} orders {len(self.arms)} arms; expected two or more: "
                'write arms = ["best", "worst"]'
            )
        if (self.arm is None) == (not self.arms):
            raise ValueError(
                f"the claim {self.statement!r} names "
                f"{'no arm' if self.arm is None else 'arm and arms'}; "
                'expected one of both: write arm = "NAME"'
            )
        return self

    def names(self) -> tuple[str, ...]:
        """Return every arm that it names."""
        inside = (name for one in self.arms for name in ((one,) if isinstance(one, str) else one))
        given = (self.arm, *inside, self.against)
        return tuple(dict.fromkeys(name for name in given if name is not None))


class PublishedResults(Section):
    """Results that a source printed for the same arms: shown for reference, never a target.

    Attributes:
        source: with the place.
        note: why its numbers are no measure of ours.
        values: by arm.
    """

    source: Name
    note: Name
    values: dict[str, float]


def split_option(word: str) -> tuple[str, str]:
    """Split a word of a command into an option and the value that it names, which may be a path.

    Example:
        >>> split_option("--data=/a/x"), split_option("/a=b/x")
        (('--data=', '/a/x'), ('', '/a=b/x'))
    """
    before = _OPTION.match(word)
    return (before[0], word[before.end() :]) if before else ("", word)


class Command(Section):
    """A command of your own that scores a finished model: the measure `command:NAME`.

    Attributes:
        run: the program and its arguments, without a shell; `python` is the one that layerlab runs
            in, and `{model}` the folder of the model. The last line that it prints is a number,
            `{"score": 0.5}`, or a list with the score of each question.
        better: whether `higher` or `lower` scores are.
        timeout_minutes: after which it is ended.
    """

    run: Annotated[
        tuple[Name, ...], Field(min_length=1, examples=[["python", "score.py", "{model}"]])
    ]
    better: Literal["higher", "lower"] = "higher"
    timeout_minutes: Positive = 60.0

    @property
    def digest(self) -> str:
        """Return a hash of its words, without folders, for where its files are not."""
        parts = map(split_option, self.run)
        names = json.dumps([before + Path(value).name for before, value in parts])
        return hashlib.sha256(names.encode()).hexdigest()[:12]

    @model_validator(mode="after")
    def _check_model(self) -> "Command":
        if not any(MODEL in one for one in self.run):
            raise ValueError(
                f"the command {' '.join(self.run)!r} is not told which model it scores; write "
                'run = ["python", "score.py", "{model}"]'
            )
        return self


class CompareSection(Section):
    """The runs of the comparison, and what they have in common.

    Attributes:
        arms: variants by name, or tables.
        baseline: the arm that others are judged against; the first where it is left out.
        seeds: fixed in advance; every arm runs with each.
        learning_rates: each arm is judged at its best. One declared rate (that of the train
            section) where they are left out.
        search: `grid` tries every rate; `optuna` searches between the smallest and the largest.
        trials: of a search by optuna.
        looks: numbers of seeds after which it is judged and may stop, as `[3, 6, 12]`; each spends
            a part of alpha. One, at the end, where they are left out.
        variance: `moderated`: three arms or more tell of each other's noise; `own`: each pair has
            a t-test of its own.
        match: what arms have in common with the baseline: `parameters`, `flops` of a token,
            `time` of the whole run, or `none`.
        match_by: the size that is changed for it: `ffn`, `depth`, `width`.
        measures: beside the loss, each a verdict for every arm: `steps:LOSS`, updates until the
            held-out loss is reached, between two evaluations; of a monitor `peak:READING`, the
            largest `score`, `attention_norm`, `stream_norm`, `growth` or `gradient`, the `spikes`
            of the loss, and by how much the `gradient` is larger in the first block than in the
            last, in powers of ten; of the finished model its score in `suite:NAME`, a suite,
            benchmark or task of `layerlab evaluate`, or by `command:NAME`.
        commands: of your own, by name, which run with `--trust-recipe` alone.
        lockstep: all arms of a seed see each batch in turn, in one process.
        allowed_differences: settings, by their paths, in which runs may differ and still be
            compared.
        timed: runs whose speed counts, as `llama-s1`, where others shared their device; all where
            they are left out.
        confidence: of the intervals.
        power: at which the smallest detectable effect is stated.
        published: numbers of a source, told beside the verdicts.
        claims: of sources, each judged by the runs; they change none of them.
    """

    arms: Annotated[tuple[str | Arm, ...], Field(min_length=1, examples=[["llama", "pangu-pi"]])]
    baseline: str | None = None
    seeds: Annotated[tuple[Whole, ...], Field(min_length=1)] = (1, 2, 3)
    learning_rates: Annotated[tuple[Positive, ...], Field(examples=[[1e-3, 3e-3, 1e-2]])] = ()
    search: Literal["grid", "optuna"] = "grid"
    trials: Count = 8
    looks: tuple[Whole, ...] = ()
    variance: Literal["moderated", "own"] = "moderated"
    match: Literal["none", "parameters", "flops", "time"] = "none"
    match_by: Literal["ffn", "depth", "width"] = "ffn"
    measures: Annotated[
        tuple[Annotated[str, AfterValidator(check_measure)], ...], Field(examples=[["steps:2.5"]])
    ] = ()
    commands: dict[str, Command] = Field(default_factory=dict)
    lockstep: bool = False
    allowed_differences: tuple[str, ...] = ()
    timed: tuple[str, ...] = ()
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.95
    power: Annotated[float, Field(gt=0.5, lt=1)] = 0.8
    published: PublishedResults | None = None
    claims: tuple[Claim, ...] = ()

    @model_validator(mode="after")
    def _check_looks(self) -> "CompareSection":
        """Check that looks are in rising order and end at all seeds."""
        looks, count = list(self.looks), len(self.seeds)
        if looks and (looks != sorted(set(looks)) or looks[0] < 2 or looks[-1] != count):
            way = f"write looks = {sorted({2, count})}" if count > 1 else "plan more seeds"
            raise ValueError(
                f"compare.looks is {looks}; expected numbers of seeds from 2 on that rise to all "
                f"{count}: {way}"
            )
        if looks and self.search == "optuna":
            raise ValueError(
                'compare.looks stops between runs, which search = "optuna" chooses by itself; '
                'write search = "grid", or no looks'
            )
        return self

    @model_validator(mode="after")
    def _check_measures(self) -> "CompareSection":
        """Check that no measure is named twice, and no two have one place for their scores."""
        claimed = [one for one in self.scored if one not in self.measures]
        seen: dict[str, str] = {}
        for measure in (*self.measures, *claimed):
            key = parse_measure(measure).key if is_scored(measure) else measure
            if key in seen:
                raise ValueError(
                    f"compare has the measures {seen[key]!r} and {measure!r}, of which only one "
                    f"can be kept as {key!r}; leave one out, or give its file another name"
                )
            seen[key] = measure
        return self

    @model_validator(mode="after")
    def _check_commands(self) -> "CompareSection":
        """Check that each command that is a measure is there."""
        for measure in self.scored:
            parsed = parse_measure(measure)
            if parsed.kind == COMMAND and parsed.name not in self.commands:
                hint = suggest(parsed.name, list(self.commands))
                raise ValueError(
                    f"compare.measures has {measure!r}, and there is no such command; {hint}write "
                    f"[compare.commands.{parsed.name}] with "
                    'run = ["python", "score.py", "{model}"]'
                )
        return self

    @property
    def scored(self) -> tuple[str, ...]:
        """The measures, of claims too, that are scores of finished models."""
        named = dict.fromkeys([*self.measures, *(claim.measure for claim in self.claims)])
        return tuple(one for one in named if is_scored(one))

    def is_higher_better(self, measure: str) -> bool:
        """Return whether more is better in a measure: in scores, unless a command says not."""
        if not is_scored(measure):
            return False
        parsed = parse_measure(measure)
        return parsed.kind != COMMAND or self.commands[parsed.name].better == "higher"

    def find_step_unit(self) -> str:
        """Return what the steps of runs are."""
        return STEP_UNIT

    @property
    def grid_rates(self) -> tuple[float, ...]:
        """The learning rates that every arm and seed has to run at; none of a search by optuna."""
        return self.learning_rates if self.search == "grid" else ()

    def at(self, look: int) -> "CompareSection":
        """Return the same with the seeds of a look."""
        return self.model_copy(update={"seeds": self.seeds[:look]})
