"""What runs cost: FLOPs by formula, time by calibration, memory and disk, before any starts.

Two conventions of attention are in use, and both are stated. `full` counts every product of the
score matrix, as PyTorch's FlopCounterMode does; `causal` counts those that a causal mask leaves,
(T + 1) / 2 of T for each token of a block.
"""

import heapq
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from layerlab import UserError
from layerlab.model.account import account
from layerlab.model.match import Match
from layerlab.training.calibration import Pace, here, paced, settled
from layerlab.training.machine import matmul_peak
from layerlab.training.permission import permit
from layerlab.training.plan import Run, designed
from layerlab.training.recipe import Recipe
from layerlab.training.section import Arm, RunSection
from layerlab.training.start import room, starting

# Bytes of float32 weights, and of AdamW's two moments; gradients live in memory alone.
WEIGHT, MOMENTS, GRADIENT = 4, 8, 4


@dataclass(frozen=True, kw_only=True)
class Work:
    """FLOPs of one token, forward and backward, at the length of a block.

    Attributes:
        full: with the whole square of attention.
        causal: with what a causal mask leaves of it.
    """

    full: int
    causal: int


@dataclass(frozen=True, kw_only=True)
class Side:
    """What the runs of one arm cost, each.

    Attributes:
        layers: of the model.
        match: what was resized, where arms are matched.
        parameters: of embedding, head, blocks and scalars.
        token_flops: of one token, forward and backward, by both conventions.
        update_tokens: of one update.
        flops: of a run, with the whole square of attention.
        update_seconds: None where there is no such device here.
        seconds: of a run, with its evaluations and the start of its process.
        measured: by a calibration; else by formula.
        mfu: FLOPs per second over the measured peak.
        memory: bytes of weights, gradients, moments and activations; the process comes on top.
        disk: bytes of the checkpoints that are kept, and of the model.
    """

    arm: str
    runs: int
    layers: int
    match: Match | None
    parameters: Mapping[str, int]
    token_flops: Work
    updates: int
    update_tokens: int
    flops: int
    update_seconds: float | None
    seconds: float | None
    measured: bool
    mfu: float | None
    memory: int
    disk: int


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a plan costs, before anything runs.

    Attributes:
        slots: runs at once.
        start: seconds until a run's process has imported what it needs; 0 where it has none.
        seconds: until the last run has ended; None where it cannot be told here.
        peak: FLOPs per second of the fastest matrix product; None where there is no such device.
        room: bytes of memory that are free here; None where it cannot be told.
        compiled: whether models will be, and are measured as they are before.
    """

    sides: tuple[Side, ...]
    slots: int
    seconds: float | None
    peak: float | None
    start: float = 0.0
    room: int | None = None
    compiled: bool = False

    @property
    def runs(self) -> int:
        """Of all arms."""
        return sum(side.runs for side in self.sides)

    @property
    def flops(self) -> int:
        """Of all runs."""
        return sum(side.runs * side.flops for side in self.sides)

    @property
    def disk(self) -> int:
        """Bytes of all runs."""
        return sum(side.runs * side.disk for side in self.sides)

    @property
    def memory(self) -> int:
        """Bytes of the runs that go on at once, if all were of the largest arm."""
        return min(self.slots, self.runs) * max(side.memory for side in self.sides)

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, numbers and texts."""
        totals = ("runs", "slots", "seconds", "flops", "memory", "disk", "peak", "start")
        return {name: getattr(self, name) for name in totals} | {
            "arms": [
                asdict(side) | {"match": side.match and side.match.to_json()} for side in self.sides
            ]
        }

    def table(self, width: int = 120) -> Any:
        """A row per arm, and what all runs take together, for a terminal of this width."""
        from layerlab.training.quote import quote  # drawing is asked for on a terminal alone

        return quote(self, width)


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


def estimate(
    runs: Sequence[Run],
    settings: RunSection | None = None,
    *,
    measure: bool = True,
    validation_tokens: int = 0,
    processes: bool = True,
) -> Estimate:
    """What the runs of a plan cost together.

    Args:
        runs: at least one, resolved.
        settings: how they are carried out; those of the first run where they are left out.
        measure: carry out a few updates of each arm; else a share of the peak is assumed.
        validation_tokens: that each evaluation reads.
        processes: whether each run has one of its own, which takes time to start.
    """
    first = runs[0].recipe
    peak = peak_of(first)
    arms: dict[str, list[Run]] = {}
    for run in runs:
        arms.setdefault(run.arm, []).append(run)
    paces = {
        arm: paced(of[0], work(of[0].recipe).full, peak, measure=measure)
        for arm, of in arms.items()
    }
    sides = {arm: _side(of, paces[arm], peak) for arm, of in arms.items()}
    start = starting(first.run.device, measure=measure) if processes and peak else 0.0
    seconds = {
        arm: side.seconds
        and side.seconds + start + _reading(arms[arm][0].recipe, paces[arm], validation_tokens)
        for arm, side in sides.items()
    }
    slots = slots_of(settings or first.run)
    return Estimate(
        sides=tuple(replace(side, seconds=seconds[arm]) for arm, side in sides.items()),
        slots=slots,
        seconds=_makespan([seconds[run.arm] for run in runs], slots),
        peak=peak,
        start=start,
        room=room(first.run.device) if peak else None,
        compiled=any(run.recipe.train.compile for run in runs),
    )


def slots_of(settings: RunSection) -> int:
    """Runs at once: what the recipe says, else one per GPU, or as many as its threads leave room.

    Example:
        >>> slots_of(RunSection(slots=3))
        3
    """
    if settings.slots is not None:
        return settings.slots
    if torch.device(settings.device).type != "cpu":
        return max(1, torch.accelerator.device_count() // settings.processes)
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        cores = os.cpu_count() or 1
    return max(1, cores // (settings.threads * settings.processes))


def _side(runs: Sequence[Run], pace: Pace, peak: float | None) -> Side:
    recipe = runs[0].recipe
    found = designed(recipe)
    cost, each = account(found.spec, found.shape), work(recipe)
    updates = recipe.train.updates or 0
    tokens = recipe.train.batch * (recipe.data.block or found.shape.context)
    return Side(
        arm=runs[0].arm,
        runs=len(runs),
        layers=found.shape.layers,
        match=runs[0].match,
        parameters={
            name: getattr(cost, name) for name in ("embedding", "head", "blocks", "scalars")
        },
        token_flops=each,
        updates=updates,
        update_tokens=tokens,
        flops=each.full * tokens * updates,
        update_seconds=pace.update,
        seconds=pace.update and updates * pace.update,
        measured=pace.measured,
        mfu=pace.update and peak and utilisation(each.full * tokens, pace.update, peak),
        memory=(WEIGHT + GRADIENT + MOMENTS) * cost.parameters + pace.activations,
        disk=(recipe.run.keep * (WEIGHT + MOMENTS) + WEIGHT) * cost.parameters,
    )


def _reading(recipe: Recipe, pace: Pace, validation: int) -> float:
    """Seconds of a run's evaluations, which read each token forward only."""
    if recipe.evaluate.blocks is not None:
        validation = min(validation, recipe.evaluate.blocks * (recipe.data.block or validation))
    updates = recipe.train.updates or 0
    every = recipe.evaluate.every or max(1, updates // 10)
    evaluations = 1 + -(-updates // every)
    tokens = recipe.train.batch * (recipe.data.block or 1)
    forward = (pace.update or 0.0) / 3 if pace.forward is None else pace.forward
    return evaluations * validation * forward / tokens


def _makespan(seconds: Sequence[float | None], slots: int) -> float | None:
    """Until the last run ends, where each slot that falls free takes the next."""
    free = [0.0] * slots
    for each in seconds:
        if each is None:
            return None
        heapq.heapreplace(free, free[0] + each)
    return max(free)
