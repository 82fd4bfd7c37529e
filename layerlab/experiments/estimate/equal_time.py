"""Updates that fit into the time that the baseline takes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from layerlab.errors import UserError
from layerlab.experiments.estimate.step_time import cached_step_times
from layerlab.recipes.arms import is_fitted, sort_baselines_first
from layerlab.recipes.checks import validate
from layerlab.recipes.comparison_sections import Arm
from layerlab.training.flops import flops_per_token, peak_of
from layerlab.training.run_spec import RunSpec


def updates_for_time(
    seconds: Mapping[str, float], baselines: Mapping[str, str], updates: Mapping[str, int]
) -> dict[str, int]:
    """Return how many updates of each arm fit into the time of its baseline.

    The nearest whole number, at least one; so the times differ by half an update at most.

    Args:
        seconds: of one update, of each arm.
        baselines: of the arms that are fitted, each after its own.
        updates: of all arms; those that are fitted have others in the end.

    Example:
        >>> updates_for_time({"llama": 0.10, "siaf": 0.125}, {"siaf": "llama"}, {"llama": 400})
        {'llama': 400, 'siaf': 320}
    """
    found = dict(updates)
    for arm, baseline in baselines.items():
        found[arm] = max(1, round(found[baseline] * seconds[baseline] / seconds[arm]))
    return found


def equal_time(runs: Sequence[RunSpec], arms: Sequence[Arm]) -> list[RunSpec]:
    """Return the runs with as many updates as fit into the time that their baseline takes.

    An arm that sets a length of its own keeps it. The speed of every other is measured once on a
    machine and kept in the cache, so that the same plan comes out each time.

    Args:
        arms: with their names and baselines written out.

    Raises:
        UserError: there is no such device here, what was measured cannot be kept, or what is left
            of a run is shorter than its warm-up.
    """
    of: dict[str, RunSpec] = {}
    for run in runs:
        of.setdefault(run.arm, run)
    fitted = {
        str(arm.name): str(arm.against) for arm in sort_baselines_first(arms) if is_fitted(arm)
    }
    measured = {arm: of[arm] for arm in of if arm in {*fitted, *fitted.values()}}
    first = next(iter(of.values())).recipe
    peak = peak_of(first)
    if peak is None:
        raise UserError(
            f"arms are matched by time, and there is no {first.run.device!r} here to measure on; "
            'plan where the runs will be, or write match = "flops"'
        )
    flops = {arm: flops_per_token(run.recipe).full for arm, run in measured.items()}
    given = {arm: run.recipe.train.max_steps or 0 for arm, run in of.items()}
    updates = updates_for_time(cached_step_times(measured, flops, peak), fitted, given)
    found = [
        replace(run, recipe=run.recipe.change(_lasting(run, updates[run.arm])))
        if run.arm in fitted
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
