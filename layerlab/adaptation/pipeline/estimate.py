"""Estimates the tokens, FLOPs and time of each stage, and lists finished ones."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

import psutil
import torch

from layerlab.adaptation.pipeline.dry_update import DryUpdate, dry_update
from layerlab.adaptation.pipeline.plan import is_shape
from layerlab.adaptation.pipeline.stage import Stage, StageStore
from layerlab.adaptation.pipeline.texts import rows_of
from layerlab.adaptation.pipeline.update_time import Update, UpdateTime, time_update
from layerlab.adaptation.trainer.arguments import block_of, split_rows
from layerlab.console.units import amount, duration
from layerlab.data.places import find_text
from layerlab.errors import UserError
from layerlab.experiments.estimate.step_time import ASSUMED
from layerlab.loading.folders import find_folder
from layerlab.loading.weightless import empty
from layerlab.loading.weights import configuration as read_configuration
from layerlab.model.build import configuration
from layerlab.model.design import design
from layerlab.recipes.adaptation import AdaptationRecipe
from layerlab.recipes.adaptation_sections import (
    PretrainSection,
    RowsSection,
    StageRunSection,
    StepSection,
)
from layerlab.system.hardware import here, matmul_peak
from layerlab.system.logs import quiet_libraries
from layerlab.training.run_spec import design_model

# Bytes of text that a token is assumed to stand for, where nothing has been encoded.
PER_TOKEN = 3
# Forward and backward, of each parameter and token.
FLOPS = 6
CONTEXT = 10**9  # bytes that a GPU's own context and half-filled blocks take
PEAKS = {"bf16": 312e12, "fp32": 19.5e12}  # of an A100, where the recipe's device is not here
POOLS = 100 << 20  # of a process on a CPU, what its products and its allocator keep
JOINED = 120 << 20  # what it takes to exchange tensors with others


@dataclass(frozen=True, kw_only=True)
class StageForecast:
    """The forecast of one stage.

    Attributes:
        tokens: that it trains on; None where it trains nothing.
        flops: of its passes forward and backward, counted on the model without weights; where that
            trains a base, 6 of each parameter and token; None where no size is known.
        seconds: that it took, or else will take: updates and readings of held-out text, measured on
            a few where the model fits here, else at 0.4 of the fastest matrix product here.
        finished: whether it is done.
        memory: bytes of each process at the peak; None where it trains nothing.
        measured: whether seconds stand on updates that were tried here.
    """

    key: str
    title: str
    tokens: int | None
    flops: int | None
    seconds: float | None
    finished: bool
    memory: int | None = None
    measured: bool = False


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The forecast of all stages.

    Attributes:
        parameters: of the base; None where they cannot be told.
        room: bytes of memory for each process; None where they cannot be told.
        here: whether the recipe's device is.
        absent: what the recipe names and is not here, a line each.
    """

    rows: tuple[StageForecast, ...]
    parameters: int | None
    room: int | None = None
    here: bool = True
    absent: tuple[str, ...] = ()

    @property
    def left(self) -> float:
        """Seconds of the stages that train and are not finished."""
        return sum((one.seconds or 0.0 for one in self.rows if not one.finished), 0.0)

    def to_json(self) -> dict[str, Any]:
        """Return the forecast as plain numbers and texts."""
        stages = [asdict(one) for one in self.rows]
        return {
            "parameters": self.parameters,
            "seconds_left": self.left,
            "room": self.room,
            "fits": self.fits,
            "absent": list(self.absent),
            "stages": stages,
        }

    @property
    def fits(self) -> bool | None:
        """Tell whether every stage finds its memory; None where that is not known."""
        needed = [one.memory for one in self.rows if one.memory is not None]
        return None if self.room is None or not needed else max(needed) <= self.room

    def remarks(self) -> list[str]:
        """Return what stands below the table, a sentence each."""
        size = "?" if self.parameters is None else f"{self.parameters:,}"
        found = [
            f"A base of {size} parameters; {duration(self.left)} of training left: of updates "
            "tried here where the model fits, else by formula, of FLOPs at "
            f"{ASSUMED:g} of the fastest matrix product"
            + (" here" if self.here else " of an A100, since the device is not here")
            + ". What is read and asked comes on top."
        ]
        if self.fits is not None:
            room = f"{self.room / 1e9:,.3g} GB" if self.room is not None else ""
            word = "It fits" if self.fits else "It does not fit"
            found.append(f"{word} into the {room} of each process; the memory is that of the peak.")
        return [*found, *self.absent]

    def table(self) -> Any:
        """Return the table of the forecast for a terminal."""
        from rich.table import Table
        from rich.text import Text

        table = Table(
            box=None,
            pad_edge=False,
            header_style="dim",
            title_justify="left",
            caption_justify="left",
            caption=Text("\n".join(self.remarks())),
        )
        for heading in ("stage", "tokens", "FLOPs", "memory", "time", "", "folder"):
            table.add_column(heading, justify="right" if heading in _NUMBERS else "left")
        for one in self.rows:
            table.add_row(
                Text(one.title),
                "" if one.tokens is None else f"{one.tokens:,}",
                "" if one.flops is None else amount(one.flops),
                "" if one.memory is None else f"{one.memory / 1e9:,.3g} GB",
                "" if one.seconds is None else duration(one.seconds),
                "finished" if one.finished else "",
                Text(one.key, style="dim"),
            )
        return table


_NUMBERS = ("tokens", "FLOPs", "memory", "time")


def forecast(
    recipe: AdaptationRecipe,
    stages: Sequence[Stage],
    shelf: StageStore,
    absent: Sequence[str] = (),
) -> Forecast:
    """Return a forecast of what the stages of a recipe take.

    Args:
        absent: what the recipe names and is not here, a line each.

    Raises:
        UserError: the base's recipe, or the rows of tuning, cannot be read.
    """
    arms = recipe.arms()
    size = _parameters(recipe, stages, shelf)
    teller = _Teller(recipe.run)
    rows = []
    for stage in stages:
        own = arms[stage.arms[0]]
        tokens = _tokens(own, stage)
        kept = shelf.read(stage.key)
        row = StageForecast(
            key=stage.key,
            title=stage.title(len(arms)),
            tokens=tokens,
            flops=FLOPS * size * tokens if tokens is not None and size is not None else None,
            seconds=kept["seconds"] if kept else None,
            finished=kept is not None,
        )
        rows.append(row if kept else teller.tell(row, own, stage))
    return Forecast(
        rows=tuple(rows),
        parameters=size,
        room=_room(recipe.run),
        here=here(recipe.run.device),
        absent=tuple(absent),
    )


@dataclass
class _Teller:
    """Forecasts stages; what several of them have in common is found out once."""

    run: StageRunSection
    known: dict[str, tuple[DryUpdate, UpdateTime]] = field(default_factory=dict)
    peaks: dict[str, float] = field(default_factory=dict)
    # What Python and the libraries take before any model is made.
    libraries: int = field(default_factory=lambda: int(psutil.Process().memory_info().rss))

    def tell(self, row: StageForecast, recipe: AdaptationRecipe, stage: Stage) -> StageForecast:
        """Return the forecast of a stage with memory, FLOPs and seconds, where it trains."""
        section = {"pretrain": recipe.pretrain, "tune": recipe.sft}.get(stage.kind)
        if section is None or (make := model_maker(recipe)) is None:
            seconds = row.flops / (ASSUMED * self.peak("fp32")) if row.flops is not None else None
            return replace(row, seconds=seconds)
        block = section.block_size or block_of(make())
        update = share_rows(section, self.run, block)
        dry, taken = self._try(make, section, update, recipe)
        row = replace(row, memory=self._memory(dry), measured=taken.measured)
        if row.tokens is None:
            return row
        passed = update.micro * block
        updates = max(1, round(row.tokens / (section.batch_size * block)))
        flops = dry.flops * row.tokens / passed
        reading = taken.seconds * dry.forward / dry.flops
        reading *= _held_tokens(recipe, stage, row.tokens, block) / (section.batch_size * block)
        seconds = updates * taken.seconds + reading
        return replace(row, flops=round(flops), seconds=seconds)

    def _try(
        self, make: Any, section: StepSection, update: Update, recipe: AdaptationRecipe
    ) -> tuple[DryUpdate, UpdateTime]:
        lora = section.lora and section.lora.model_dump(mode="json")
        key = repr([recipe.base.model, recipe.base.dtype, recipe.vocabulary, update, lora])
        key += repr([section.mixed_precision, section.gradient_checkpointing])
        if key not in self.known:
            dry = dry_update(make(), section, update.micro, update.block)
            low = section.mixed_precision == "bf16" or recipe.base.dtype == "bfloat16"
            peak = self.peak("bf16" if low else "fp32")
            taken = time_update(make, section, self.run, update, dry, peak)
            self.known[key] = dry, taken
        return self.known[key]

    def _memory(self, dry: DryUpdate) -> int:
        run = self.run
        needed = dry.memory(run.num_processes, run.sharding)
        if run.device != "cpu":
            return needed + CONTEXT
        if run.sharding == "none":  # small pieces that are freed stay with the process
            needed += max(0, dry.standing + dry.inside - dry.peak)
        if (
            run.sharding == "fsdp"
        ):  # first and last each has, and the first puts together, the whole
            whole = dry.weights + (dry.weights + dry.moments) // run.num_processes
            needed = max(needed, whole)
        joined = JOINED if run.num_processes > 1 else 0
        return needed + self.libraries + POOLS + joined

    def peak(self, precision: str) -> float:
        """Return FLOPs per second of the fastest matrix product; assumed where no device is."""
        if precision not in self.peaks:
            device, threads = self.run.device, self.run.threads
            known = matmul_peak(device, precision, threads) if here(device) else PEAKS[precision]
            self.peaks[precision] = known
        return self.peaks[precision]


def model_maker(recipe: AdaptationRecipe) -> Callable[[], Any] | None:
    """Return what makes the base of a recipe on the meta device; None where no shape is known."""
    config = _configuration(recipe)
    if config is None:
        return None
    if recipe.vocabulary is not None:
        given = recipe.vocabulary.size
        config.vocab_size = config.vocab_size * given.startswith("+") + int(given)
    dtype = getattr(torch, recipe.base.dtype)
    return lambda: empty(config, str(recipe.base.model)).to(dtype)


def share_rows(section: StepSection, run: StageRunSection, block: int) -> Update:
    """Return the rows of an update in one process, and of a pass, as `split_batch` does."""
    rows = section.batch_size // run.num_processes
    micro = split_rows(rows, section.micro_batch_size or section.batch_size)
    return Update(rows=rows, micro=micro, block=block)


def _room(run: StageRunSection) -> int | None:
    """Return the bytes that each process has, as the recipe says or as they are here."""
    if run.memory_gb is not None:
        return round(run.memory_gb * 1e9)
    if run.device == "cpu":
        return int(psutil.virtual_memory().total) // run.num_processes
    if torch.device(run.device).type == "cuda" and here(run.device):
        return int(torch.cuda.get_device_properties(run.device).total_memory)
    return None


def _held_tokens(recipe: AdaptationRecipe, stage: Stage, tokens: int, block: int) -> float:
    """Return about how many tokens of held-out text a stage reads, all its readings together."""
    section = recipe.pretrain if stage.kind == "pretrain" else recipe.sft
    assert section is not None
    updates = max(1, round(tokens / (section.batch_size * block)))
    readings = 1 + updates // (section.eval_steps or max(1, updates // 10))
    if isinstance(section, PretrainSection):
        most = section.max_eval_blocks * block or inf
        held = (min(most, _count_held(recipe, kind)) for kind in ("domain", "general"))
        return readings * sum(one for one in held if one < inf)
    part = section.validation_fraction
    passed = 1.0 if section.tokens is not None else section.num_train_epochs
    return readings * tokens / passed * part / (1 - part)


def _count_held(recipe: AdaptationRecipe, kind: str) -> float:
    """Return about how many tokens of a kind are held out; infinity where no file says it."""
    sizes = [_size(Path(one.text)) for one in getattr(recipe.data, kind)]
    return sum(sizes) * recipe.data.validation_fraction / PER_TOKEN


def _size(place: Path) -> float:
    inside = [one for one in place.rglob("*") if one.is_file()] if place.is_dir() else [place]
    return sum(one.stat().st_size for one in inside) if place.exists() else inf


def _tokens(recipe: AdaptationRecipe, stage: Stage) -> int | None:
    if stage.kind == "base" and (training := recipe.training()) is not None:
        if training.train.tokens is not None:
            return training.train.tokens
        block = training.data.block_size or design_model(training).shape.context
        updates = training.train.max_steps
        return updates * training.train.batch_size * block if updates is not None else None
    if stage.kind == "pretrain" and recipe.pretrain is not None:
        return round(recipe.pretrain.tokens * (recipe.pretrain.resample_fraction or 1))
    if stage.kind == "tune" and recipe.sft is not None:
        if recipe.sft.tokens is not None:
            return recipe.sft.tokens
        sizes = [_bytes(one) for one in recipe.sft.sources]
        if None in sizes:
            return None
        return round(recipe.sft.num_train_epochs * sum(filter(None, sizes)) / PER_TOKEN)
    return None


def _bytes(section: RowsSection) -> int | None:
    try:
        place = find_text(section.path)
    except UserError:  # which the list of what is absent says
        return None
    if section.limit is not None:
        turns = (turn for row in rows_of(section) for turn in row.turns)
        return sum(len(turn.text.encode()) for turn in turns)
    inside = [one for one in place.rglob("*") if one.is_file()] if place.is_dir() else [place]
    return sum(one.stat().st_size for one in inside)


def _parameters(recipe: AdaptationRecipe, stages: Sequence[Stage], shelf: StageStore) -> int | None:
    """Return the number of parameters of the base, as it was found or as it is designed."""
    base = next(one for one in stages if one.kind == "base")
    if kept := shelf.read(base.key):
        return int(kept["result"]["parameters"])
    config = _configuration(recipe)
    if config is None:
        return None
    with quiet_libraries():
        model = empty(config, str(recipe.base.model))
    return sum(one.numel() for one in model.parameters())


def _configuration(recipe: AdaptationRecipe) -> Any:
    """Return the configuration of the base, of which no weights are read; None where none is here.

    The name of a preset stands for its shape.
    """
    training = recipe.training()
    if training is not None:
        sized = training.change({"model.vocab": training.model.vocab or training.data.vocab_size})
        found = design_model(sized)
        return configuration(found.variant.name, found.spec, found.shape, base=found.base)
    name = str(recipe.base.model)
    if is_shape(name):
        found = design(name)
        return configuration(found.variant.name, found.spec, found.shape)
    try:
        with quiet_libraries():
            return read_configuration(find_folder(name, whole=False))
    except UserError:  # no such name, no network, a strange configuration
        return None
