"""Estimates time (by calibration), memory and disk space of a plan before anything runs."""

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any

from layerlab.experiments.estimate.disk_space import (
    checkpoint_bytes,
    journal_bytes,
    kept_bytes,
    page_bytes,
)
from layerlab.experiments.estimate.process_memory import process_memory
from layerlab.experiments.estimate.startup import BEGINNING, startup_seconds, total_free_memory
from layerlab.experiments.estimate.step_time import StepTime, measure_step_time, timeless
from layerlab.experiments.executors.local import shares_processes
from layerlab.experiments.executors.slots import share_devices
from layerlab.model.cost.cost import account
from layerlab.model.cost.match import Match
from layerlab.model.parametrization import Base
from layerlab.recipes.training import TrainingRecipe
from layerlab.recipes.training_sections import RunSection
from layerlab.training.flops import TokenFlops, flops_per_token, peak_of, utilization
from layerlab.training.run_spec import RunSpec, design_model


@dataclass(frozen=True, kw_only=True)
class ArmEstimate:
    """The estimated cost of each run of one arm.

    Attributes:
        layers: of the model.
        match: what was resized, where arms are matched.
        base: widths from which muP scales the model; None: the standard parametrization.
        parameters: of embedding, head, blocks and scalars.
        token_flops: of one token, forward and backward, by both conventions.
        update_tokens: of one update.
        flops: of a run, with the whole square of attention.
        update_seconds: None where there is no such device here.
        seconds: of a run alone, with its evaluations, its beginning and, unless it is shared, the
            start of its process.
        measured: by a calibration; else by formula.
        mfu: FLOPs per second over the measured peak of all processes of a run.
        process_memory: bytes of weights, gradients, moments and activations in each process of a
            run at its peak; the process itself comes on top.
        memory: bytes of it in all processes of a run.
        activations: bytes of it that are held during an update alone.
        checkpoints: bytes on disk while a run is under way.
        disk: bytes that a finished run keeps.
    """

    arm: str
    runs: int
    layers: int
    match: Match | None
    base: Base | None
    parameters: Mapping[str, int]
    token_flops: TokenFlops
    updates: int
    update_tokens: int
    flops: int
    update_seconds: float | None
    seconds: float | None
    measured: bool
    mfu: float | None
    process_memory: int
    memory: int
    activations: int
    checkpoints: int
    disk: int


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The estimated cost of a plan.

    Attributes:
        slots: runs that go on at once; in lockstep one process carries them forward in turn.
        memory: bytes of the runs that go on at once.
        disk: bytes of all runs with their page, when the last are about to finish.
        start: seconds until a run's process has imported what it needs; 0 where it has none.
        begin: seconds until a run in such a process has read its text and built its model.
        shared: whether a process carries out one run after another, and starts once.
        crowded: the largest number of times that a run takes longer while all slots are at work,
            because they share cores or a GPU; 1 where each has its own.
        seconds: until the last run has ended; None where it cannot be told here.
        peak: FLOPs per second of the fastest matrix product of one process; None where there is no
            such device.
        room: bytes of memory that are free where the runs will be; None where it cannot be told.
        compiled: whether models will be, and are measured as they are before.
        untimed: what runs do besides, in words, of which no time is counted.
        lockstep: whether all runs of a seed share a process.
        cluster: whether runs go to a cluster, and not to this machine.
        processes: of each run.
    """

    sides: tuple[ArmEstimate, ...]
    slots: int
    seconds: float | None
    memory: int
    disk: int
    peak: float | None
    start: float = 0.0
    begin: float = 0.0
    shared: bool = False
    crowded: float = 1.0
    room: int | None = None
    compiled: bool = False
    untimed: tuple[str, ...] = ()
    lockstep: bool = False
    cluster: bool = False
    processes: int = 1

    @property
    def runs(self) -> int:
        """The number of runs of all arms."""
        return sum(side.runs for side in self.sides)

    @property
    def flops(self) -> int:
        """The FLOPs of all runs."""
        return sum(side.runs * side.flops for side in self.sides)

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, numbers and texts."""
        totals = (
            "runs",
            "slots",
            "lockstep",
            "seconds",
            "flops",
            "memory",
            "disk",
            "peak",
            "start",
            "begin",
            "crowded",
            "processes",
        )
        return {name: getattr(self, name) for name in totals} | {
            "arms": [
                asdict(side) | {"match": side.match and side.match.to_dict()} for side in self.sides
            ]
        }

    def table(self, width: int = 120) -> Any:
        """Return a row per arm, and what all runs take together, for a terminal of this width."""
        from layerlab.experiments.estimate.table import (
            estimate_table,  # drawing is asked for on a terminal alone
        )

        return estimate_table(self, width)


def estimate(
    runs: Sequence[RunSpec],
    settings: RunSection | None = None,
    *,
    measure: bool = True,
    validation_tokens: int = 0,
    processes: bool = True,
    lockstep: bool = False,
) -> Estimate:
    """Estimate what the runs of a plan cost together.

    Args:
        runs: at least one, resolved.
        settings: how they are carried out; those of the first run where they are left out.
        measure: carry out a few updates of each arm; else a share of the peak is assumed.
        validation_tokens: that each evaluation reads.
        processes: whether each run has one of its own, which takes time to start.
        lockstep: whether one process carries out all runs, those of a seed in turn.
    """
    first = runs[0].recipe
    settings = settings or first.run
    peak = peak_of(first)
    arms: dict[str, list[RunSpec]] = {}
    for run in runs:
        arms.setdefault(run.arm, []).append(run)
    cache: dict[str, StepTime] = {}  # of arms whose updates take the same, measured once
    step_times = {arm: _step_time(of[0], peak, measure, cache) for arm, of in arms.items()}
    sides = {arm: _side(of, step_times[arm], peak) for arm, of in arms.items()}
    own = processes and not lockstep
    start = startup_seconds(first.run.device, measure=measure) if own and peak else 0.0
    shared = own and shares_processes(settings)
    begin = start / BEGINNING
    each = begin + (0.0 if shared else start)
    seconds = {
        arm: side.seconds
        and side.seconds + each + _reading(arms[arm][0].recipe, step_times[arm], validation_tokens)
        for arm, side in sides.items()
    }
    asked = share_devices(settings, 1 if lockstep else len(runs))
    crowd = _crowd(runs, sides, len(asked), lockstep)
    cluster = settings.executor == "slurm" and not lockstep
    return Estimate(
        sides=tuple(replace(side, seconds=seconds[arm]) for arm, side in sides.items()),
        slots=len(crowd),
        seconds=_makespan([seconds[run.arm] for run in runs], asked, start if shared else 0.0),
        memory=_in_one(crowd) if lockstep else sum(side.memory for side in crowd),
        disk=_on_disk(runs, crowd),
        peak=peak,
        start=start,
        begin=begin,
        shared=shared,
        crowded=max(_slow_down(asked)),
        room=total_free_memory(first.run.device) if peak and not cluster else None,
        compiled=any(run.recipe.train.torch_compile for run in runs),
        untimed=tuple(_list_untimed(runs)),
        lockstep=lockstep,
        cluster=cluster,
        processes=first.run.num_processes,
    )


def _crowd(
    runs: Sequence[RunSpec], sides: Mapping[str, ArmEstimate], slots: int, lockstep: bool
) -> list[ArmEstimate]:
    """Return the runs that go on at once: in lockstep all of a seed, else one for each slot."""
    if lockstep:
        return [sides[run.arm] for run in runs if run.seed == runs[0].seed]
    largest = max(sides.values(), key=lambda side: side.memory)
    return [largest] * slots


def _list_untimed(runs: Sequence[RunSpec]) -> Iterator[str]:
    """Yield what some of the runs do besides, of which no time is counted."""
    yield "to write checkpoints, models and the page"
    if any(run.recipe.evaluate.prompts for run in runs):
        yield "to continue the prompts"
    if any(run.recipe.monitor.interval for run in runs):
        yield "to read the monitor"


def _step_time(
    run: RunSpec, peak: float | None, measure: bool, cache: dict[str, StepTime]
) -> StepTime:
    flops = flops_per_token(run.recipe).full
    if peak is None or not measure:
        return measure_step_time(run, flops, peak, measure=measure)
    key = json.dumps(timeless(run))
    if key not in cache:
        cache[key] = measure_step_time(run, flops, peak)
    return cache[key]


def _in_one(crowd: Sequence[ArmEstimate]) -> int:
    """Return the memory of runs in one process: the state of all, and the pass of one."""
    passing = max(side.activations for side in crowd)
    return passing + sum(side.memory - side.activations for side in crowd)


def _on_disk(runs: Sequence[RunSpec], crowd: Sequence[ArmEstimate]) -> int:
    finished = sum(kept_bytes(run.recipe) for run in runs)
    under_way = sum(side.checkpoints for side in crowd)
    return finished + under_way + page_bytes(sum(journal_bytes(run.recipe) for run in runs))


def _side(runs: Sequence[RunSpec], step: StepTime, peak: float | None) -> ArmEstimate:
    recipe = runs[0].recipe
    found = design_model(recipe)
    cost, each = account(found.spec, found.shape), flops_per_token(recipe)
    own = process_memory(recipe, step.activations)
    updates = recipe.train.max_steps or 0
    tokens = recipe.train.batch_size * (recipe.data.block_size or found.shape.context)
    processes = recipe.run.num_processes
    return ArmEstimate(
        arm=runs[0].arm,
        runs=len(runs),
        layers=found.shape.layers,
        match=runs[0].match,
        base=found.base,
        parameters={
            name: getattr(cost, name) for name in ("embedding", "head", "blocks", "scalars")
        },
        token_flops=each,
        updates=updates,
        update_tokens=tokens,
        flops=each.full * tokens * updates,
        update_seconds=step.update,
        seconds=step.update and updates * step.update,
        measured=step.measured,
        mfu=step.update and peak and utilization(each.full * tokens, step.update, processes * peak),
        process_memory=own,
        memory=processes * own,
        activations=processes * step.activations,
        checkpoints=checkpoint_bytes(recipe),
        disk=kept_bytes(recipe),
    )


def _reading(recipe: TrainingRecipe, step: StepTime, validation: int) -> float:
    """Return seconds of a run's evaluations, which read each token forward only."""
    if recipe.evaluate.max_eval_blocks is not None:
        validation = min(
            validation, recipe.evaluate.max_eval_blocks * (recipe.data.block_size or validation)
        )
    updates = recipe.train.max_steps or 0
    every = recipe.evaluate.eval_steps or max(1, updates // 10)
    evaluations = 1 + -(-updates // every)
    tokens = recipe.train.batch_size * (recipe.data.block_size or 1)
    forward = (step.update or 0.0) / 3 if step.forward is None else step.forward
    return evaluations * validation * forward / tokens


def _makespan(
    seconds: Sequence[float | None], asked: Sequence[Mapping[str, Fraction]], start: float
) -> float | None:
    """Return the time until the last run ends, each slot that is free taking the next run.

    Args:
        seconds: of each run alone.
        asked: by each slot, the share of each device.
        start: seconds of each slot before its first run.
    """
    queue, now = deque(seconds), 0.0
    left = dict.fromkeys(range(len(asked)), start)  # of what each slot is at, in seconds alone
    while left:
        slower = dict(zip(left, _slow_down([asked[slot] for slot in left]), strict=True))
        first = min(left, key=lambda slot: left[slot] * slower[slot])
        passed = left.pop(first) * slower[first]
        now += passed
        left = {slot: max(0.0, each - passed / slower[slot]) for slot, each in left.items()}
        if queue:
            if (following := queue.popleft()) is None:
                return None
            left[first] = following
    return now


def _slow_down(asked: Sequence[Mapping[str, Fraction]]) -> list[float]:
    """Return how many times as long each run takes beside the others as alone."""
    total: dict[str, Fraction] = {}
    for shares in asked:
        for device, share in shares.items():
            total[device] = total.get(device, Fraction(0)) + share
    return [max((1.0, *(float(total[device]) for device in shares))) for shares in asked]
