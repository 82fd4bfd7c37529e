"""Time of an update of a stage: a few of the real model here, else by formula."""

from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from layerlab.adaptation.pipeline.dry_update import (
    DryUpdate,
    dry_update,
    pass_forward,
    prepare_recomputation,
)
from layerlab.adaptation.trainer.lora import add_adapters
from layerlab.experiments.estimate.step_time import ASSUMED, TIMES
from layerlab.recipes.adaptation_sections import StageRunSection, StepSection
from layerlab.system.hardware import free_memory, here, stopwatch, with_threads

PASS = 1.0  # seconds that one pass may take; what is longer is measured on fewer tokens
LARGEST = 300_000_000  # parameters that a CPU fills in a moment
SHORT = 16  # tokens of a short pass
# Bytes a second between two processes: by gloo with its copies and sums (2.2 to 2.6 ns of processor
# time a byte on one machine), and by NCCL.
EXCHANGE = {"cpu": 4e8, "cuda": 1e11}


@dataclass(frozen=True, kw_only=True)
class UpdateTime:
    """The time of an update.

    Attributes:
        seconds: of an update of all processes.
        forward: of a pass over held-out text, of as many tokens.
        short: of one over a few tokens.
        measured: here, now; else by formula.
    """

    seconds: float
    forward: float
    short: float
    measured: bool

    def read(self, tokens: float, passes: float, most: int) -> float:
        """Return the seconds of passes over so many tokens of held-out text, all together.

        Args:
            most: tokens of a pass that takes `forward`.
        """
        each = (self.forward - self.short) / max(1, most - SHORT)
        return passes * self.short + max(0.0, tokens - passes * SHORT) * max(0.0, each)


@dataclass(frozen=True, kw_only=True)
class Update:
    """The rows of an update in one process.

    Attributes:
        rows: of an update.
        micro: of a pass.
        block: tokens of a row.
    """

    rows: int
    micro: int
    block: int

    @property
    def tokens(self) -> int:
        """Tokens of a pass."""
        return self.micro * self.block


def time_update(
    make: Any,
    section: StepSection,
    run: StageRunSection,
    update: Update,
    dry: DryUpdate,
    peak: float,
) -> UpdateTime:
    """Return the time of an update, measured where the model fits here.

    Args:
        make: makes the model on the meta device.
        dry: what a pass of it takes.
        peak: FLOPs per second of the fastest matrix product.
    """
    passes = update.rows / update.micro
    exchange = _exchange(run, dry, passes)
    if not _fits(run, dry):
        rate = ASSUMED * peak * dry.tokens
        through, forward, short = (
            tokens * flops / rate
            for tokens, flops in (
                (update.tokens, dry.flops),
                (update.tokens, dry.forward),
                (SHORT, dry.forward),
            )
        )
        seconds = passes * through + exchange
        return UpdateTime(seconds=seconds, forward=forward, short=short, measured=False)
    with with_threads(run.threads):
        found = _try(make, section, run, update, dry, peak)
    step = found.step / (run.num_processes if run.sharding == "fsdp" else 1)
    return UpdateTime(
        seconds=passes * found.through + step + exchange,
        forward=found.forward,
        short=found.short,
        measured=True,
    )


def _fits(run: StageRunSection, dry: DryUpdate) -> bool:
    if not here(run.device) or dry.parameters > LARGEST:
        return False
    return dry.peak < free_memory(run.device) / 2


def _exchange(run: StageRunSection, dry: DryUpdate, passes: float) -> float:
    """Return seconds in which processes hand over gradients, and weights that are shared out."""
    if run.num_processes == 1:
        return 0.0
    sent = 2 * dry.learned if run.sharding == "none" else dry.learned + 2 * passes * dry.weights
    share = (run.num_processes - 1) / run.num_processes
    return sent * share / EXCHANGE.get(torch.device(run.device).type, EXCHANGE["cpu"])


@dataclass(frozen=True, kw_only=True)
class _PassTimes:
    """Seconds of a pass forward and backward, of the step of an update, and of passes forward."""

    through: float
    step: float
    forward: float
    short: float


def _try(
    make: Any,
    section: StepSection,
    run: StageRunSection,
    update: Update,
    dry: DryUpdate,
    peak: float,
) -> _PassTimes:
    most = PASS * ASSUMED * peak / dry.flops * dry.tokens
    rows, block = max(1, min(update.micro, int(most) // update.block)), update.block
    if most < block:
        block = min(block, max(16, int(most)))
    scale = forward = 1.0
    if (rows, block) != (update.micro, update.block):
        part = dry_update(make, section, rows, block)
        scale = dry.flops / dry.tokens * update.tokens / part.flops
        forward = dry.forward / dry.tokens * update.tokens / part.forward
    device = torch.device(run.device)
    model = make().to_empty(device=device)
    _draw(model)
    if section.lora is not None:
        model = add_adapters(model, section.lora, 0)
    prepare_recomputation(model.train(), section)
    learned = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=1e-6, fused=True)
    tokens = torch.zeros(rows, block, dtype=torch.long, device=device)
    clock = stopwatch(device, run.threads)
    taken = []
    for _ in range(1 + TIMES):
        begun = clock()
        model.train().num_parameters(exclude_embeddings=True)  # as Trainer does at each pass
        pass_forward(model, tokens, section.mixed_precision, device.type).backward()
        between = clock()
        get_total_norm([one.grad for one in learned if one.grad is not None])
        nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        taken.append((between - begun, clock() - between))
    through, step = (median(column) for column in zip(*taken[1:], strict=True))
    del optimizer
    model.eval()

    def read(tokens: Tensor) -> float:
        times = []
        for _ in range(1 + TIMES):
            begun = clock()
            with torch.no_grad():
                pass_forward(model, tokens, section.mixed_precision, device.type)
            times.append(clock() - begun)
        return median(times[1:])

    return _PassTimes(
        through=through * scale,
        step=step,
        forward=read(tokens) * forward,
        short=read(tokens[:1, :SHORT]),
    )


@torch.no_grad()
def _draw(model: nn.Module) -> None:
    """Give a model weights of a usual size; those of zero would be multiplied faster."""
    for parameter in model.parameters():
        parameter.normal_(std=0.02)
    for buffer in model.buffers():
        buffer.fill_(0.5)
