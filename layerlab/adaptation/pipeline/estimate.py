"""Estimates the tokens, FLOPs and time of each stage, and lists finished ones."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import psutil
import torch

from layerlab.adaptation.pipeline.amounts import count_tokens, measure_amount
from layerlab.adaptation.pipeline.dry_update import DryUpdate, dry_update
from layerlab.adaptation.pipeline.overhead import (
    BaseFiles,
    FileRates,
    base_seconds,
    measure_rates,
    stage_seconds,
)
from layerlab.adaptation.pipeline.stage import Stage, StageStore
from layerlab.adaptation.pipeline.starting_model import base_configuration, base_files, model_maker
from layerlab.adaptation.pipeline.update_time import Update, UpdateTime, time_update
from layerlab.adaptation.pipeline.worker import IMPORTED
from layerlab.adaptation.trainer.arguments import block_of, split_rows
from layerlab.console.units import amount as quantity
from layerlab.console.units import duration
from layerlab.experiments.estimate.startup import startup_seconds
from layerlab.experiments.estimate.step_time import ASSUMED
from layerlab.loading.weights.weightless import empty
from layerlab.recipes.adaptation import AdaptationRecipe
from layerlab.recipes.adaptation_sections import StageRunSection, StepSection
from layerlab.system.hardware import here, matmul_peak
from layerlab.system.logs import quiet_libraries

# Forward and backward, of each parameter and token.
FLOPS = 6
CONTEXT = 10**9  # bytes that a GPU's own context and half-filled blocks take
PEAKS = {"bf16": 312e12, "fp32": 19.5e12}  # of an A100, where the recipe's device is not here
POOLS = 100 << 20  # what products and the allocator keep of a process that is alone
JOINED = 120 << 20  # what one takes that shares a model out


@dataclass(frozen=True, kw_only=True)
class StageParts:
    """Seconds of the parts of a stage.

    Attributes:
        updates: of the weights.
        held_out: readings of held-out text.
        beside: starts of processes, loading, tokens, trials, checkpoints, hashes and saving.
    """

    updates: float = 0.0
    held_out: float = 0.0
    beside: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.updates + self.held_out + self.beside


@dataclass(frozen=True, kw_only=True)
class StageForecast:
    """The forecast of one stage.

    Attributes:
        trains: whether it is pretraining or tuning.
        tokens: that it trains on; None where it trains nothing, or its texts are not here.
        flops: of its passes forward and backward, counted on the model without weights; where that
            trains a base, 6 of each parameter and token; None where no size is known.
        seconds: that it took, or else will take, all parts together.
        parts: of these, where they are told apart: passes are measured on a few where the model
            fits here, else at 0.4 of the fastest matrix product here; files on one that is small.
        finished: whether it is done.
        memory: bytes of each process at the peak; None where it trains nothing.
        measured: whether seconds stand on updates that were tried here.
        notes: on the rows of tuning.
    """

    key: str
    title: str
    trains: bool
    tokens: int | None
    flops: int | None
    seconds: float | None
    finished: bool
    memory: int | None = None
    measured: bool = False
    parts: StageParts | None = None
    notes: tuple[str, ...] = ()

    def cells(self) -> tuple[str, ...]:
        """Return what a table has of its numbers: a dash for what is not known yet."""
        share = None if self.parts is None else self.parts.updates / self.parts.total
        found = (
            None if self.tokens is None else f"{self.tokens:,}",
            None if self.flops is None else quantity(self.flops),
            None if self.memory is None else f"{self.memory / 1e9:,.3g} GB",
            None if self.seconds is None else duration(self.seconds),
            None if share is None else f"{share:.0%}",
        )
        unknown = "-" if self.trains and not self.finished else ""
        return tuple(unknown if one is None else one for one in found)


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
    def left(self) -> float | None:
        """Seconds of the stages that train and are not finished; None where one has none."""
        return None if self._stages_without_time else self._known

    @property
    def _known(self) -> float:
        return sum((one.seconds or 0.0 for one in self.rows if not one.finished), 0.0)

    @property
    def _stages_without_time(self) -> list[str]:
        """Stages of which nothing tells how long they train."""
        rows = [one for one in self.rows if one.trains and not one.finished]
        return [one.title for one in rows if one.seconds is None]

    def to_dict(self) -> dict[str, Any]:
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
        """Return whether every stage finds its memory; None where that is not known."""
        needed = [one.memory for one in self.rows if one.memory is not None]
        return None if self.room is None or not needed else max(needed) <= self.room

    def remarks(self) -> list[str]:
        """Return what stands below the table, a sentence each."""
        size = "?" if self.parameters is None else f"{self.parameters:,}"
        left = f"{duration(self._known)} of training left"
        if stages := " and ".join(self._stages_without_time):
            without = f"without {stages}, whose texts are not here"
            left = f"{left}, {without}" if self._known else f"no time can be told {without}"
        found = [
            f"A base of {size} parameters; {left}: of updates "
            "tried here where the model fits, else by formula, of FLOPs at "
            f"{ASSUMED:g} of the fastest matrix product"
            + (" here" if self.here else " of an A100, since the device is not here")
            + ". Beside updates it is held-out text, loading, hashing and saving; cleaning, "
            "vocabularies and benchmarks come on top."
        ]
        if self.fits is not None:
            room = f"{self.room / 1e9:,.3g} GB" if self.room is not None else ""
            word = "It fits" if self.fits else "It does not fit"
            found.append(f"{word} into the {room} of each process; the memory is that of the peak.")
        notes = dict.fromkeys(f"{note}." for one in self.rows for note in one.notes)
        return [*found, *notes, *self.absent]

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
        for heading in ("stage", "tokens", "FLOPs", "memory", "time", "updates", "", "folder"):
            table.add_column(heading, justify="right" if heading in _NUMBERS else "left")
        for one in self.rows:
            table.add_row(
                Text(one.title),
                *one.cells(),
                "finished" if one.finished else "",
                Text(one.key, style="dim"),
            )
        return table


_NUMBERS = ("tokens", "FLOPs", "memory", "time", "updates")


def forecast(
    recipe: AdaptationRecipe,
    stages: Sequence[Stage],
    store: StageStore,
    absent: Sequence[str] = (),
) -> Forecast:
    """Return a forecast of what the stages of a recipe take.

    Args:
        absent: what the recipe names and is not here, a line each.

    Raises:
        UserError: the base's recipe, or the rows of tuning, cannot be read.
    """
    arms = recipe.arms()
    size = _parameters(recipe, stages, store)
    teller = _Teller(recipe.run)
    rows = []
    for stage in stages:
        own = arms[stage.arms[0]]
        kept = store.read(stage.key)
        tokens = _count_read(stage, kept) if kept else None
        tokens = count_tokens(own, stage) if tokens is None else tokens
        row = StageForecast(
            key=stage.key,
            title=stage.title(len(arms)),
            trains=stage.kind in ("pretrain", "tune"),
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


def _count_read(stage: Stage, kept: Mapping[str, Any]) -> int | None:
    """Return the tokens that a finished stage trained on; None of one that keeps no count."""
    left = kept["result"]
    if stage.kind == "pretrain":
        return int(left["tokens"])
    if stage.kind == "tune":
        return round(sum(one["tokens"] * one["passes"] for one in left["sources"].values()))
    return None


@dataclass
class _Teller:
    """Forecasts stages; what several of them have in common is found out once."""

    run: StageRunSection
    dry: dict[str, DryUpdate] = field(default_factory=dict)
    times: dict[str, UpdateTime] = field(default_factory=dict)
    peaks: dict[str, float] = field(default_factory=dict)
    # What Python and the libraries take before any model is made.
    libraries: int = field(default_factory=lambda: int(psutil.Process().memory_info().rss))

    def tell(self, row: StageForecast, recipe: AdaptationRecipe, stage: Stage) -> StageForecast:
        """Return the forecast of a stage with memory, FLOPs and seconds, where it trains."""
        section = {"pretrain": recipe.pretrain, "tune": recipe.sft}.get(stage.kind)
        make = model_maker(recipe)
        if stage.kind == "base" and recipe.base.model and make and (files := base_files(recipe)):
            begun = time.process_time()
            make()
            build = time.process_time() - begun
            return _sum(row, StageParts(beside=base_seconds(files, build, self.rates)))
        if section is None or make is None:
            seconds = row.flops / (ASSUMED * self.peak("fp32")) if row.flops is not None else None
            return replace(row, seconds=seconds)
        block = block_of(make(), section)
        amount = measure_amount(recipe, stage, row.tokens, block)
        update = share_rows(section, self.run, amount.row if amount else block)
        dry, taken = self._try(make, section, update, block, recipe)
        row = replace(row, memory=self._memory(dry), measured=taken.measured)
        if amount is None:
            return row
        passes = amount.updates * update.rows / update.micro
        flops = passes * self.run.num_processes * dry.flops * update.tokens / dry.tokens
        files = base_files(recipe) or BaseFiles(weights=2 * dry.parameters, known=0)
        beside = stage_seconds(section, amount, dry, taken, files, self.rates)
        if self.run.num_processes > 1:
            beside += startup_seconds(self.run.device, IMPORTED)
        beside += taken.read(amount.drawn, amount.drawn_passes, update.tokens)
        reading = taken.read(amount.held, amount.held_passes, update.tokens)
        parts = StageParts(
            updates=amount.updates * taken.seconds,
            held_out=amount.readings * reading,
            beside=beside,
        )
        entry = replace(row, flops=round(flops), tokens=amount.tokens, notes=amount.notes)
        return _sum(entry, parts)

    def _try(
        self,
        make: Any,
        section: StepSection,
        update: Update,
        block: int,
        recipe: AdaptationRecipe,
    ) -> tuple[DryUpdate, UpdateTime]:
        lora = section.lora and section.lora.model_dump(mode="json")
        key = repr([recipe.base, recipe.vocabulary, update.micro, block, lora])
        key += repr([section.mixed_precision, section.gradient_checkpointing])
        if key not in self.dry:
            self.dry[key] = dry_update(make, section, update.micro, block)
        dry, exact = self.dry[key], f"{key} {update}"
        if exact not in self.times:
            low = section.mixed_precision == "bf16" or recipe.base.dtype == "bfloat16"
            peak = self.peak("bf16" if low else "fp32")
            self.times[exact] = time_update(make, section, self.run, update, dry, peak)
        return dry, self.times[exact]

    @cached_property
    def rates(self) -> FileRates:
        """Return the time of files here."""
        return measure_rates()

    def _memory(self, dry: DryUpdate) -> int:
        run = self.run
        needed = dry.memory(run.num_processes, run.sharding)
        if run.device != "cpu":
            return needed + CONTEXT
        if run.sharding == "none":  # small pieces that are freed stay with the process
            needed += max(0, dry.standing + dry.inside - dry.peak)
        if run.num_processes == 1:
            return needed + self.libraries + POOLS
        if run.sharding == "none":
            return needed + self.libraries
        # Gradients that are summed are copied twice. First and last each has, and the first puts
        # together, the whole.
        loading = dry.weights + (dry.weights + dry.moments) // run.num_processes
        return max(needed + 2 * dry.learned_edge, loading) + self.libraries + JOINED

    def peak(self, precision: str) -> float:
        """Return FLOPs per second of the fastest matrix product; assumed where no device is."""
        if precision not in self.peaks:
            device, threads = self.run.device, self.run.threads
            peak = matmul_peak(device, precision, threads) if here(device) else PEAKS[precision]
            self.peaks[precision] = peak
        return self.peaks[precision]


def _sum(row: StageForecast, parts: StageParts) -> StageForecast:
    return replace(row, seconds=parts.total, parts=parts)


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


def _parameters(recipe: AdaptationRecipe, stages: Sequence[Stage], store: StageStore) -> int | None:
    """Return the number of parameters of the base, as it was found or as it is designed."""
    base = next(one for one in stages if one.kind == "base")
    if kept := store.read(base.key):
        return int(kept["result"]["parameters"])
    config = base_configuration(recipe)
    if config is None:
        return None
    with quiet_libraries():
        model = empty(config, str(recipe.base.model))
    return sum(one.numel() for one in model.parameters())
