"""Searches each arm's learning rate in rounds of runs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from layerlab.experiments.plan.lr_search import next_rate
from layerlab.recipes.comparison_sections import CompareSection
from layerlab.records.result import read_result
from layerlab.training.run_spec import RunSpec


def search_rates(
    section: CompareSection,
    runs: Sequence[RunSpec],
    out: Path,
    carry: Callable[[list[RunSpec]], object],
) -> list[RunSpec]:
    """Run a search, all arms side by side, until every arm has had its trials.

    Args:
        runs: of the plan; their rates are not looked at.
        out: in which each run has a folder of its name.
        carry: carries out runs.

    Returns:
        Every run that was made.

    Raises:
        UserError: the search has no range, or optuna is not installed.
    """
    arms = {run.arm: {one.seed: one for one in runs if one.arm == run.arm} for run in runs}
    searches = {arm: next_rate(section, number) for number, arm in enumerate(arms)}
    tried: dict[str, dict[float, float]] = {arm: {} for arm in arms}
    made: list[RunSpec] = []
    while True:
        proposed = {arm: one.propose(tried[arm]) for arm, one in searches.items()}
        fresh = {
            arm: [_at(run, rate) for run in arms[arm].values()]
            for arm, rate in proposed.items()
            if rate is not None
        }
        if not fresh:
            return made
        carry([run for several in fresh.values() for run in several])
        for arm, several in fresh.items():
            tried[arm][several[0].rate] = _mean(several, out)
            made += several


def _at(run: RunSpec, rate: float) -> RunSpec:
    return replace(run, recipe=run.recipe.changed({"train.learning_rate": rate}))


def _mean(runs: Sequence[RunSpec], out: Path) -> float:
    """Return the mean of the seeds; infinite where one of them diverged or crashed."""
    found = [(read_result(out / run.name) or {}).get("nats") for run in runs]
    return fmean(math.inf if one is None else one for one in found)
