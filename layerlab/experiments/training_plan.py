"""The runs of a recipe before any of them runs: what they take, and how their arms differ."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from layerlab.console.units import duration
from layerlab.experiments.analysis.table import differences
from layerlab.experiments.analysis.warnings import warn_of_few_seeds
from layerlab.experiments.estimate.estimate import Estimate
from layerlab.experiments.estimate.ladder import describe_sum, plan_to_json
from layerlab.experiments.executors.local import read_finished_result
from layerlab.experiments.plan.factors import warn_of_many_slots
from layerlab.experiments.session import PreparedRecipe
from layerlab.experiments.statistics.looks import describe_looks


@dataclass(frozen=True)
class SizePlan:
    """The runs of one size before any of them runs.

    Attributes:
        estimate: time, memory and disk space.
        differs: how the arms differ, a row each.
        scores: what scoring the finished models takes.
    """

    estimate: Estimate
    differs: Sequence[Mapping[str, Any]]
    scores: Sequence[Mapping[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        parts = {"differs": list(self.differs), "scores": list(self.scores)}
        return {**self.estimate.to_dict(), **parts}

    def remarks(self) -> list[str]:
        """Return the lines that stand below the table of the estimate."""
        lines = (differences(self.differs), warn_of_many_slots(self.differs))
        return [*chain(*lines), *describe_scores(self.scores)]


@dataclass(frozen=True)
class TrainingPlan:
    """The runs of a recipe before any of them runs; of a ladder size by size.

    Attributes:
        task: what was planned.
    """

    task: PreparedRecipe
    sizes: Sequence[SizePlan]

    @property
    def looks(self) -> list[str]:
        """Return what early looks at a comparison spend."""
        section = self.task.recipe.compare
        return [] if section is None else describe_looks(section, len(section.arms))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        sizes_json, rungs = [one.to_dict() for one in self.sizes], self.task.rungs
        sizes = plan_to_json(rungs, sizes_json) if rungs else sizes_json[0]
        left, seconds = self.left
        known = None if math.isnan(seconds) else seconds
        own = {"looks": self.looks, "notes": self.task.notes}
        return {**sizes, "runs_left": left, "seconds_left": known, **own}

    def remarks(self) -> list[str]:
        """Return the lines that stand below all sizes."""
        found = [one.estimate for one in self.sizes] if self.task.rungs else []
        lines = describe_sum(found) if found else ()
        compared = [one.recipe.compare for one in self.task.sizes if one.recipe.compare]
        few = dict.fromkeys(chain(*map(warn_of_few_seeds, compared)))
        own = (*self._describe_left(), *_describe_trial(self.task))
        return [*lines, *own, *self.looks, *few, *self.task.notes]

    @property
    def left(self) -> tuple[int, float]:
        """Return how many runs are not finished yet, and the seconds that they take about."""
        task, seconds = self.task, 0.0
        left = {
            run.name for run in task.runs if read_finished_result(run, task.folder(run)) is None
        }
        for size, cost in zip(task.sizes, self.sizes, strict=False):
            each = {side.arm: side.seconds for side in cost.estimate.sides}
            open_ = [run for run in size.runs if run.name in left]
            seconds += sum(each[run.arm] or math.nan for run in open_) / cost.estimate.slots
        return len(left), seconds

    def _describe_left(self) -> list[str]:
        """Describe what is left where runs are finished already."""
        planned, (left, seconds) = len(self.task.runs), self.left
        if left == planned:
            return []
        if not left:
            return ["every run is finished and kept: nothing is left to run"]
        return [
            f"{planned - left} of {planned} runs finished and kept: what is left takes about "
            f"{duration(seconds)}"
        ]


def _describe_trial(task: PreparedRecipe) -> list[str]:
    section = task.recipe.compare
    if task.recipe.run.max_parallel != "auto" or section is None or section.lockstep:
        return []
    return [
        'run.max_parallel is "auto": a trial of about a minute finds how many runs at once are '
        "fastest; the time in all counts one per core or GPU, and no trial"
    ]


def describe_scores(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Describe what scoring finished models takes."""
    lines = []
    for row in rows:
        head = f"{row['measure']} scores {row['runs']} finished models"
        if "run" in row:
            lines.append(
                f"{head} by {shlex.join(row['run'])}: {row['timeout_minutes']:g} minutes each at "
                "most; it runs with --trust-recipe alone, and never for --plan or --judge"
            )
            continue
        each = row["seconds"]
        whole = None if each is None else each * row["runs"]
        lines.append(
            f"{head}, {row['questions']:,} questions each: {duration(each)} a model, "
            f"{duration(whole)} in all, after the runs"
        )
    return lines
