"""Updates that fit into the time that the baseline takes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from layerlab.errors import UserError
from layerlab.experiments.estimate.step_time import cached_step_times
from layerlab.recipes.checks import validate
from layerlab.recipes.comparison_sections import Arm
from layerlab.training.flops import flops_per_token, peak_of
from layerlab.training.run_spec import RunSpec


def updates_for_time(seconds: Mapping[str, float], baseline: str, updates: int) -> dict[str, int]:
    """Return how many updates of each arm fit into the baseline's time.

    The nearest whole number, at least one; so the times differ by half an update at most.

    Args:
        seconds: of one update, of each arm.
        updates: of the baseline.

    Example:
        >>> updates_for_time({"llama": 0.10, "siaf": 0.125}, "llama", 400)
        {'llama': 400, 'siaf': 320}
    """
    budget = updates * seconds[baseline]
    return {
        arm: updates if arm == baseline else max(1, round(budget / each))
        for arm, each in seconds.items()
    }


def equal_time(
    runs: Sequence[RunSpec], arms: Sequence[Arm], baseline: str | None = None
) -> list[RunSpec]:
    """Return the runs with as many updates as fit into the baseline's time.

    An arm that sets `train.max_steps` keeps them. The speed of every other is measured once on a
    machine and kept in the cache, so that the same plan comes out each time.

    Args:
        arms: with their names written out.
        baseline: the first arm, where it is left out.

    Raises:
        UserError: there is no such device here, what was measured cannot be kept, or what is left
            of a run is shorter than its warm-up.
    """
    named = {str(arm.name): arm for arm in arms}
    first = baseline or next(iter(named))
    of: dict[str, RunSpec] = {}
    for run in runs:
        of.setdefault(run.arm, run)
    free = [arm for arm in of if arm == first or "train.max_steps" not in named[arm].set]
    device, peak = of[first].recipe.run.device, peak_of(of[first].recipe)
    if peak is None:
        raise UserError(
            f"arms are matched by time, and there is no {device!r} here to measure on; "
            'plan where the runs will be, or write match = "flops"'
        )
    measured = {arm: of[arm] for arm in free}
    flops = {arm: flops_per_token(run.recipe).full for arm, run in measured.items()}
    seconds = cached_step_times(measured, flops, peak)
    updates = updates_for_time(seconds, first, of[first].recipe.train.max_steps or 0)
    found = [
        replace(run, recipe=run.recipe.change(_lasting(run, updates[run.arm])))
        if run.arm in updates and run.arm != first
        else run
        for run in runs
    ]
    for run in found:
        validate(run.recipe)
    return found


def _lasting(run: RunSpec, updates: int) -> dict[str, Any]:
    """Return a recipe with this many updates, evaluated as often per run as before."""
    train, every = run.recipe.train, run.recipe.evaluate.eval_steps
    share = (every or 1) / (train.max_steps or 1)
    return {"train.max_steps": updates, "evaluate.eval_steps": max(1, round(share * updates))}
