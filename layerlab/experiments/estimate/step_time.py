"""Measures the time of an update on this machine: a few of the real model, on random tokens."""

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from layerlab.model.build import assemble
from layerlab.model.cost.cost import account
from layerlab.model.loss import causal_loss
from layerlab.recipes.training import TrainingRecipe
from layerlab.records.kept import read_kept, write_kept
from layerlab.system.hardware import (
    DTYPES,
    cache_folder,
    free_memory,
    is_duration,
    machine,
    stopwatch,
    versions,
    with_threads,
)
from layerlab.system.locks import lock_folder
from layerlab.system.rng import keep_device_state
from layerlab.system.torch_settings import evaluation_mode
from layerlab.training.optimizer import build_optimizer
from layerlab.training.qk_control.penalties import QKControl
from layerlab.training.run_spec import RunSpec, design_model, own_files
from layerlab.training.setup import set_attention
from layerlab.training.step.emulated_rounding import emulation
from layerlab.training.step.microbatch import MicroBatcher

PASS = 0.3  # seconds that one pass may take; what is longer is measured on fewer tokens
TIMES = 3
EMULATED = 3  # times as long as a plain pass, or more, is one under emulated rounding
SITTINGS = 3  # of each arm, where arms are to take equal time
ASSUMED = 0.4  # of the peak, where nothing is measured: most models here reach 0.2 to 0.7
LARGEST = 100_000_000  # parameters that a CPU draws in a moment
PACE = "pace-2"  # in the cache; the times in "pace", of 0.1, were kept without a digest
HOUR = 3600.0  # seconds for another process that measures the same arms
STATE = 16  # bytes of a parameter: weight, gradient and two moments


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """The measured time and memory of an update.

    Attributes:
        update: seconds of an update; None where there is no such device.
        activations: bytes that a forward pass leaves for the backward pass.
        measured: here, now; else by formula.
        forward: seconds of a forward pass of as many tokens, as evaluations make it: without
            gradients, and never rounded; None where it was not measured.
    """

    update: float | None
    activations: int
    measured: bool
    forward: float | None = None


def measure_step_time(
    run: RunSpec, flops: int, peak: float | None, *, measure: bool = True
) -> StepTime:
    """Measure the time of an update in about three seconds; else estimate it by formula.

    Models that are compiled are measured as they are before: compiling takes minutes, and leaves
    its code in the cache, so that the runs would not take what was measured.

    Args:
        flops: of a token, forward and backward.
        peak: FLOPs per second of the fastest matrix product.
    """
    tokens = run.recipe.train.batch_size * (run.recipe.data.block_size or 1)
    if peak is None:
        return StepTime(update=None, activations=_assumed_activations(run), measured=False)
    if not measure or not _fits(run):
        share = tokens * flops / (ASSUMED * peak) / run.recipe.run.num_processes
        return StepTime(update=share, activations=_assumed_activations(run), measured=False)
    with with_threads(run.recipe.run.threads), keep_device_state():
        return _Trial(run, flops, peak).measure()


def cached_step_times(
    runs: Mapping[str, RunSpec], flops: Mapping[str, int], peak: float
) -> dict[str, float]:
    """Return seconds of an update of each arm, as they were first measured on this machine.

    They no longer change: a plan that divides time by them is then the same each time, and what it
    has begun can be resumed. Arms take turns, and the fastest of their turns counts, so that no arm
    pays for what else the machine did.

    Raises:
        UserError: what was measured cannot be kept, or another process measures for over an hour.
    """
    content = [[timeless(run) for run in runs.values()], versions(), SITTINGS]
    key = hashlib.blake2b(json.dumps(content).encode(), digest_size=8).hexdigest()
    file = cache_folder() / PACE / f"{key}.json"

    def check(kept: Mapping[str, Any]) -> None:
        if len(kept["seconds"]) != len(runs) or not all(map(is_duration, kept["seconds"])):
            raise ValueError("it has other numbers than the times of these arms")

    if (kept := read_kept(file, check)) is None:
        # Two at once would have times of their own, and only one of them could go on later.
        with lock_folder(file, wait=HOUR, way="set LAYERLAB_CACHE to another folder"):
            if (kept := read_kept(file, check)) is None:
                kept = {"seconds": list(_turns(runs, flops, peak).values())}
                write_kept(file, kept)
    return dict(zip(runs, kept["seconds"], strict=True))


def _turns(runs: Mapping[str, RunSpec], flops: Mapping[str, int], peak: float) -> dict[str, float]:
    turns = [
        {arm: measure_step_time(run, flops[arm], peak).update or 0.0 for arm, run in runs.items()}
        for _ in range(SITTINGS)
    ]
    return {arm: min(turn[arm] for turn in turns) for arm in runs}


def timeless(run: RunSpec) -> list[Any]:
    """Return the settings that the time of an update depends on."""
    recipe = run.recipe
    kept = recipe.decisive()
    train = {
        name: value
        for name, value in kept["train"].items()
        if name not in {"seed", "learning_rate", "max_steps", "tokens", "num_train_epochs"}
    }
    hardware = machine(recipe.run.device, recipe.run.threads)
    emulate = recipe.emulate.model_dump()
    # A file of one's own is known by what is in it, not by where it lies.
    model = {**kept["model"], "load": own_files(recipe)}
    found = [model, recipe.data.block_size, train, emulate, recipe.run.num_processes, hardware]
    # Where nothing is controlled, what was kept before this counted holds on.
    controlled = recipe.control.model_dump(exclude_defaults=True)
    return [*found, controlled] if controlled else found


def _fits(run: RunSpec) -> bool:
    """Return whether the model can be built here within seconds."""
    recipe = run.recipe
    found = design_model(recipe)
    size = account(found.spec, found.shape).parameters
    if recipe.run.device == "cpu":
        return size <= LARGEST and STATE * size < free_memory("cpu") / 4
    if torch.device(recipe.run.device).type == "cuda":
        return STATE * size < free_memory(recipe.run.device) / 2
    return size <= LARGEST


def _assumed_activations(run: RunSpec) -> int:
    """Return bytes: what a Llama block keeps of each token, and the logits with their gradient."""
    shape, recipe = design_model(run.recipe).shape, run.recipe
    size = 4 if recipe.train.mixed_precision == "fp32" else 2
    layer = (10 * shape.width + 4 * shape.inner) * size
    return passed_tokens(recipe) * (shape.layers * layer + 8 * shape.vocab)


def passed_tokens(recipe: TrainingRecipe) -> int:
    """Return the tokens of a forward pass in one process."""
    return _rows(recipe) * (recipe.data.block_size or design_model(recipe).shape.context)


def _rows(recipe: TrainingRecipe) -> int:
    """Return sequences of a forward pass in one process, as the loop splits its batch."""
    train = recipe.train
    return MicroBatcher(train.batch_size // recipe.run.num_processes, train.micro_batch_size).size


class _Trial:
    """The real model with its real optimizer and control, on tokens drawn at random."""

    def __init__(self, run: RunSpec, flops: int, peak: float) -> None:
        recipe = run.recipe
        found = design_model(recipe)
        self.run, self.recipe = run, recipe
        self.device = torch.device(recipe.run.device)
        self.block = recipe.data.block_size or found.shape.context
        slower = 1 if recipe.emulate.format is None else EMULATED
        self.rows, self.length = _portion(
            int(PASS * ASSUMED * peak / flops / slower), _rows(recipe), self.block
        )
        # A shorter sequence has less attention, which time is scaled by.
        self.flops = flops
        self.spec, self.shape = found.spec, found.shape
        model = assemble(
            found.variant.name, found.spec, found.shape, seed=run.seed, base=found.base
        )
        set_attention(model, recipe.train.attn_implementation)
        self.model = model.train()
        self.model.to(self.device)
        self.control = QKControl(self.model, recipe.control)
        self.optimizer = build_optimizer(self.model, recipe.train)
        self.clock: Callable[[], float] = stopwatch(self.device, recipe.run.threads)
        own = torch.Generator().manual_seed(0)
        drawn = torch.randint(0, found.shape.vocab, (self.rows, self.length), generator=own)
        self.tokens: Tensor = drawn.to(self.device)

    def measure(self) -> StepTime:
        """Time an update, after one that warms up and counts activations."""
        kept = KeptBytes(self.model)
        with self._round():
            with torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda tensor: tensor):
                loss = self._loss()
            loss.backward()
        self._end_update()
        taken = [self._time() for _ in range(TIMES)]
        through, step = (min(column) for column in zip(*taken, strict=True))
        wanted = self.recipe.train.batch_size * self.block / self.recipe.run.num_processes
        scale = wanted / (self.rows * self.length) * self._longer()
        portion = passed_tokens(self.recipe) / (self.rows * self.length)
        return StepTime(
            update=through * scale + step,
            activations=round(kept.bytes * portion),
            measured=True,
            forward=self._forward() * scale,
        )

    @torch.no_grad()
    def _forward(self) -> float:
        taken = []
        with evaluation_mode(self.model):
            for _ in range(TIMES):
                start = self.clock()
                self._loss()
                taken.append(self.clock() - start)
        return min(taken)

    def _time(self) -> tuple[float, float]:
        start = self.clock()
        with self._round():
            self._loss().backward()
        middle = self.clock()
        self._end_update()
        return middle - start, self.clock() - middle

    def _loss(self) -> Tensor:
        with self._precision():
            logits = self.model(input_ids=self.tokens, use_cache=False).logits
        return causal_loss(logits, self.tokens, logits.shape[-1])

    def _end_update(self) -> None:
        """Do what an update does once, however many tokens it has."""
        with self._round():
            if (penalty := self.control.loss()) is not None:
                penalty.backward()
        limit = self.recipe.train.max_grad_norm or float("inf")
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        self.optimizer.step()
        self.control.after_update()
        self.optimizer.zero_grad()

    def _precision(self) -> AbstractContextManager[Any]:
        if self.recipe.train.mixed_precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=DTYPES[self.recipe.train.mixed_precision])

    def _round(self) -> AbstractContextManager[Any]:
        return emulation(self.model, self.recipe.emulate, seed=0, update=0)

    def _longer(self) -> float:
        """Return the work of a token in a whole block over that of a token in the trial."""
        if self.length == self.block:
            return 1.0
        shorter = replace(self.shape, context=self.length)
        return self.flops / (3 * account(self.spec, shorter).forward)


def _portion(tokens: int, rows: int, block: int) -> tuple[int, int]:
    """Return the number and length of sequences with at most this many tokens.

    Example:
        >>> _portion(1000, 16, 128), _portion(100, 16, 128), _portion(10**9, 16, 128)
        ((7, 128), (1, 100), (16, 128))
    """
    if tokens >= block:
        return min(rows, tokens // block), block
    return 1, min(block, max(16, tokens))


class KeptBytes:
    """Counts the bytes that wait for the backward pass, each storage once, without weights."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.known = {one.untyped_storage().data_ptr() for one in model.parameters()}
        self.bytes = 0
        self._alive: list[Tensor] = []  # or a freed address would be taken for a known one

    def pack(self, tensor: Tensor) -> Tensor:
        # Under emulated rounding a tensor is a shell around its values.
        storage = getattr(tensor, "held", tensor).untyped_storage()
        if storage.data_ptr() not in self.known:
            self.known.add(storage.data_ptr())
            self.bytes += storage.nbytes()
            self._alive.append(tensor)
        return tensor
