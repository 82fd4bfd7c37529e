"""How long an update of a stage takes: a few of the real model here, else by formula."""

from dataclasses import dataclass
from typing import Any

import psutil
import torch
from torch import nn

from layerlab.adaptation.pipeline.dry_update import (
    DryUpdate,
    dry_update,
    pass_forward,
    prepare_recomputation,
)
from layerlab.adaptation.trainer.lora import add_adapters
from layerlab.experiments.estimate.step_time import ASSUMED, TIMES
from layerlab.recipes.adaptation_sections import StageRunSection, StepSection
from layerlab.system.hardware import here, stopwatch, with_threads

PASS = 1.0  # seconds that one pass may take; what is longer is measured on fewer tokens
LARGEST = 300_000_000  # parameters that a CPU fills in a moment
EXCHANGE = {"cpu": 1e9, "cuda": 1e11}  # bytes a second between two processes, where not measured


@dataclass(frozen=True, kw_only=True)
class UpdateTime:
    """The time of an update.

    Attributes:
        seconds: of an update of all processes.
        measured: here, now; else by formula.
    """

    seconds: float
    measured: bool


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
        seconds = passes * dry.flops / (ASSUMED * peak)
        return UpdateTime(seconds=seconds + exchange, measured=False)
    with with_threads(run.threads):
        through, step = _try(make, section, run, update, dry, peak)
    return UpdateTime(seconds=passes * through + step + exchange, measured=True)


def _fits(run: StageRunSection, dry: DryUpdate) -> bool:
    if not here(run.device) or dry.parameters > LARGEST:
        return False
    if run.device == "cpu":
        return dry.peak < psutil.virtual_memory().available / 2
    return dry.peak < torch.cuda.mem_get_info(run.device)[0] / 2


def _exchange(run: StageRunSection, dry: DryUpdate, passes: float) -> float:
    """Return seconds in which processes hand over gradients, and weights that are shared out."""
    if run.num_processes == 1:
        return 0.0
    sent = 2 * dry.learned if run.sharding == "none" else dry.learned + 2 * passes * dry.weights
    share = (run.num_processes - 1) / run.num_processes
    return sent * share / EXCHANGE.get(torch.device(run.device).type, EXCHANGE["cpu"])


def _try(
    make: Any,
    section: StepSection,
    run: StageRunSection,
    update: Update,
    dry: DryUpdate,
    peak: float,
) -> tuple[float, float]:
    """Return the seconds of a pass forward and backward, and of what comes once in an update."""
    most = PASS * ASSUMED * peak / dry.flops * update.micro * update.block
    rows, block = max(1, min(update.micro, int(most) // update.block)), update.block
    if most < block:
        block = min(block, max(16, int(most)))
    scale = 1.0
    if (rows, block) != (update.micro, update.block):
        scale = dry.flops / dry_update(make(), section, rows, block).flops
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
        pass_forward(model, tokens, section.mixed_precision, device.type).backward()
        between = clock()
        nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        taken.append((between - begun, clock() - between))
    through, step = (min(column) for column in zip(*taken[1:], strict=True))
    return through * scale, step


@torch.no_grad()
def _draw(model: nn.Module) -> None:
    """Give a model weights of a usual size; those of zero would be multiplied faster."""
    for parameter in model.parameters():
        parameter.normal_(std=0.02)
    for buffer in model.buffers():
        buffer.fill_(0.5)
