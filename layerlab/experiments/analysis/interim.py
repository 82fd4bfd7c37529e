"""The runs of a comparison up to a look, and what they say of each pair of arms."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from layerlab.experiments.analysis.arm_results import ArmResults, collect_arm, missing_seeds
from layerlab.experiments.analysis.readings.run_readings import (
    explain_unreached,
    read_runs,
    read_scores,
)
from layerlab.experiments.statistics.additive_model import Additive
from layerlab.experiments.statistics.differences import (
    Difference,
    Level,
    Range,
    contrast_of,
    difference_to,
)
from layerlab.experiments.statistics.moderated_variance import Prior
from layerlab.experiments.statistics.multiple_comparisons import Evidence, PairTest
from layerlab.experiments.statistics.sampling_error import sampling_error
from layerlab.experiments.statistics.size_trend import borrow
from layerlab.recipes.compared_measures import is_scored
from layerlab.recipes.comparison_sections import CompareSection
from layerlab.records.run import RunRecord

LOSS = "loss"
# The difference of an arm to its baseline.
Judging = Callable[[str, str], Difference]


@dataclass(frozen=True, kw_only=True)
class Look:
    """A look at a comparison: its arms, all with the same seeds.

    Attributes:
        section: what was planned, with the seeds of the look.
        sides: by arm.
        shared: by arm, the part of the other tests that it stands in as well.
        level: how sure a comparison has to be.
        lent: by arm and baseline, what their variance has in common with that at other sizes.
    """

    section: CompareSection
    sides: Mapping[str, ArmResults]
    shared: Mapping[str, float]
    level: Level
    lent: Mapping[tuple[str, str], Prior] = field(default_factory=dict)
    _found: dict[tuple[str, str, str], Difference] = field(default_factory=dict, compare=False)

    @property
    def metric(self) -> str:
        """The metric that is compared."""
        return next(iter(self.sides.values())).metric

    @cached_property
    def model(self) -> Additive:
        """The additive model of the final losses."""
        return Additive({name: side.values for name, side in self.sides.items()}, self.shared)

    def judging(self, model: Additive) -> Judging:
        """Return the function that gives the difference of two arms in a table of losses."""

        def difference(arm: str, baseline: str) -> Difference:
            ours, theirs = (model.values.get(name, {}) for name in (arm, baseline))
            if self.section.variance == "own" or not ours.keys() & theirs.keys():
                return difference_to(ours, theirs, self.level)
            return model.difference(arm, baseline, self.level)

        return difference

    def difference(self, arm: str, baseline: str, measure: str = LOSS) -> Difference:
        """Return the difference of two arms in loss or another metric."""
        key = arm, baseline, measure
        if key not in self._found:
            self._found[key] = self._difference(*key)
        return self._found[key]

    def evidence(self, test: PairTest) -> Evidence:
        """Return the evidence of the runs on the pair of a test.

        Of an interaction a run that diverged leaves none: which seeds are left is no chance.
        """
        sides, seeds = [self.sides[name] for name in test.arms], len(self.section.seeds)
        if test.less is not None:
            complete = not any(side.diverged for side in sides)
            found = self.interaction(test) if complete else Difference(kind="paired", n=0)
            ended = [side.ended for side in sides]
            return Evidence(found=found, ended=(min(ended[:2]), min(ended[2:])), seeds=seeds)
        arm, baseline = sides
        return Evidence(
            found=self.difference(test.arm, test.baseline, test.measure),
            lost=(
                len(self.loss_reasons(arm.name, test.measure)),
                len(self.loss_reasons(baseline.name, test.measure)),
            ),
            ended=(arm.ended, baseline.ended),
            higher=self.section.is_higher_better(test.measure),
            seeds=seeds,
        )

    def answers_alike(self, test: PairTest) -> bool:
        """Return whether two arms score every question alike, seed by seed."""
        tables = question_tables(test.measure, self.sides, {test.arm: 1, test.baseline: -1})
        return bool(tables) and not any(table.any() for _, table in tables)

    def loss_reasons(self, arm: str, measure: str = LOSS) -> dict[int, str]:
        """Return by seed why an arm has no number: its run diverged, or never came so far."""
        side = self.sides[arm]
        if measure == LOSS:
            return side.diverged
        ended = {seed: side.runs[seed] for seed in side.values}
        counted = self.section.find_step_unit()
        return {**side.diverged, **explain_unreached(measure, ended, side.metric, counted)}

    def missing(self, test: PairTest) -> list[int]:
        """Return the planned seeds that an arm of a test has not finished, or not a score of."""
        found: set[int] = set()
        for side in (self.sides[name] for name in test.arms):
            found.update(missing_seeds(self.section, side))
            if is_scored(test.measure):
                ended = {seed for seed, run in side.runs.items() if run.diverged is None}
                found |= ended - read_scores(test.measure, side.runs).keys()
        return sorted(found)

    def interaction(self, test: PairTest) -> Difference:
        """Return the difference of a pair less that of another, seed by seed."""
        signs = dict(zip(test.arms, (1, -1, -1, 1), strict=True))
        if self.section.variance == "own":
            found = contrast_of(self.model.values, signs, self.level)
        else:
            found = self.model.contrast(signs, self.level)
        return replace(found, text=text_error({name: self.sides[name] for name in signs}, signs))

    def _difference(self, arm: str, baseline: str, measure: str) -> Difference:
        ours, theirs = self.sides[arm], self.sides[baseline]
        if is_scored(measure):
            values = {
                name: read_runs(measure, side.runs, side.metric)
                for name, side in self.sides.items()
            }
            found = self.judging(Additive(values, self.shared, exact=False))(arm, baseline)
            text = question_error(measure, self.sides, {arm: 1, baseline: -1})
            return replace(found, text=text, exact=False)
        if measure != LOSS:
            read = [read_runs(measure, side.runs, side.metric) for side in (ours, theirs)]
            return replace(difference_to(read[0], read[1], self.level), exact=False)
        found = self.judging(self.model)(arm, baseline)
        found = borrow(found, self.lent.get((arm, baseline)) or self.lent.get((baseline, arm)))
        sides = {arm: ours, baseline: theirs}
        return replace(found, text=text_error(sides, {arm: 1, baseline: -1}))


def collect_arms(
    records: Sequence[RunRecord],
    names: Sequence[str],
    metric: str,
    seeds: Collection[int],
) -> dict[str, ArmResults]:
    """Collect the arms of a comparison with these seeds."""
    asked = set(seeds)
    kept: dict[str, list[RunRecord]] = {name: [] for name in names}
    for one in records:
        if one.seed in asked and one.arm in kept:
            kept[one.arm].append(one)
    return {name: collect_arm(name, found, metric) for name, found in kept.items()}


def text_error(sides: Mapping[str, ArmResults], signs: Mapping[str, int]) -> Range | None:
    """Return the standard error that the held-out text adds to a sum of arms, with its degrees.

    None where runs kept no blocks, or where a token is not the same token for all.
    """
    blocks = [sides[name].blocks for name in signs]
    seeds = sorted(set.intersection(*(set(one) for one in blocks)))
    counts = {len(one[seed]) for one in blocks for seed in seeds}
    alike = len(counts) == 1 and min(counts) >= 2
    if not alike or any(side.metric != "nats" for side in sides.values()):
        return None
    signed = zip(blocks, signs.values(), strict=True)
    table = np.sum([sign * np.array([one[seed] for seed in seeds]) for one, sign in signed], axis=0)
    return sampling_error([(1.0, table)])


def question_error(
    measure: str, sides: Mapping[str, ArmResults], signs: Mapping[str, int]
) -> Range | None:
    """Return the standard error that questions add to a sum of arms, with its degrees."""
    tables = question_tables(measure, sides, signs)
    return sampling_error(tables) if tables else None


def question_tables(
    measure: str, sides: Mapping[str, ArmResults], signs: Mapping[str, int]
) -> list[tuple[float, np.ndarray]]:
    """Return a sum of arms by seed and question, of each task with its weight.

    Nothing where scores are not those of questions, or a task has one alone.
    """
    found = [read_scores(measure, sides[name].runs) for name in signs]
    seeds = sorted(set.intersection(*(set(one) for one in found)))
    if not seeds:
        return []
    parts = []
    for index, part in enumerate(found[0][seeds[0]].parts):
        table = np.zeros((len(seeds), len(part.questions)))
        for scores, sign in zip(found, signs.values(), strict=True):
            for row, seed in enumerate(seeds):
                own = scores[seed].parts[index].questions
                if len(own) < 2:
                    return []
                table[row] += sign * np.array([own[key] for key in part.questions])
        parts.append((part.weight, table))
    return parts
