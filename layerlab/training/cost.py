"""What runs cost: FLOPs by formula, and how many updates fit into a time.

Two conventions of attention are in use, and both are stated. `full` counts every product of the
score matrix, as PyTorch's FlopCounterMode does; `causal` counts those that a causal mask leaves,
(T + 1) / 2 of T for each token of a block.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from layerlab.errors import UserError
from layerlab.model.account import account
from layerlab.training.calibration import here, settled
from layerlab.training.contest import Arm
from layerlab.training.machine import matmul_peak
from layerlab.training.permission import permit
from layerlab.training.plan import Run, designed
from layerlab.training.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class Work:
    """FLOPs of one token, forward and backward, at the length of a block.

    Attributes:
        full: with the whole square of attention.
        causal: with what a causal mask leaves of it.
    """

    full: int
    causal: int


def work(recipe: Recipe) -> Work:
    """FLOPs of one token of a resolved recipe's model, forward and backward.

    A backward pass costs two forward passes.

    Unit: FLOPs per token.

    Source: Own; attention as in kaplan20, section 2.1.
    """
    found = designed(recipe)
    block = recipe.data.block or found.shape.context

    def forward(tokens: int) -> int:
        return account(found.spec, replace(found.shape, context=tokens)).forward

    # What grows with the length is attention's square, and nothing else does.
    full = forward(block)
    square = forward(2 * block) - full
    return Work(full=3 * full, causal=round(3 * (full - square * (block - 1) / (2 * block))))


def utilisation(flops: int | float, seconds: float, peak: float) -> float:
    """Model FLOPs utilisation (MFU): what was achieved over the measured peak.

    Example:
        >>> utilisation(3e11, 2.0, 1e12)
        0.15
    """
    return flops / seconds / peak


def peak_of(recipe: Recipe) -> float | None:
    """The measured peak that a recipe's runs are held against; None where there is no such device.

    Unit: FLOPs per second.
    """
    if not here(recipe.run.device):
        return None
    return matmul_peak(recipe.run.device, recipe.train.precision, recipe.run.threads)


def updates_for_time(seconds: Mapping[str, float], baseline: str, updates: int) -> dict[str, int]:
    """How many updates each arm may do in the time that the baseline takes.

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


def equal_time(runs: Sequence[Run], arms: Sequence[Arm], baseline: str | None = None) -> list[Run]:
    """Runs with as many updates as fit into the time that the baseline takes for its own.

    An arm that sets `train.updates` keeps them. The speed of every other is measured once on a
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
    of: dict[str, Run] = {}
    for run in runs:
        of.setdefault(run.arm, run)
    free = [arm for arm in of if arm == first or "train.updates" not in named[arm].set]
    device, peak = of[first].recipe.run.device, peak_of(of[first].recipe)
    if peak is None:
        raise UserError(
            f"arms are matched by time, and there is no {device!r} here to measure on; "
            'plan where the runs will be, or write match = "flops"'
        )
    measured = {arm: of[arm] for arm in free}
    flops = {arm: work(run.recipe).full for arm, run in measured.items()}
    seconds = settled(measured, flops, peak)
    updates = updates_for_time(seconds, first, of[first].recipe.train.updates or 0)
    found = [
        replace(run, recipe=run.recipe.changed(_lasting(run, updates[run.arm])))
        if run.arm in updates and run.arm != first
        else run
        for run in runs
    ]
    for run in found:
        permit(run.recipe)
    return found


def _lasting(run: Run, updates: int) -> dict[str, Any]:
    """Settings of so many updates; evaluations as often, in shares of the run, as before."""
    train, every = run.recipe.train, run.recipe.evaluate.every
    share = (every or 1) / (train.updates or 1)
    return {"train.updates": updates, "evaluate.every": max(1, round(share * updates))}
