"""Estimates the tokens, FLOPs and time of each stage, and lists finished ones."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from layerlab.adaptation.pipeline.stage import Stage, StageStore
from layerlab.adaptation.pipeline.texts import rows_of
from layerlab.console.units import amount, duration
from layerlab.data.places import find_text
from layerlab.errors import UserError
from layerlab.experiments.estimate.step_time import ASSUMED
from layerlab.loading.folders import find_folder
from layerlab.recipes.adaptation import AdaptationRecipe
from layerlab.recipes.adaptation_sections import RowsSection
from layerlab.system.hardware import matmul_peak
from layerlab.system.logs import quiet_libraries
from layerlab.training.run_spec import count_costs, design_model

# Bytes of text that a token is assumed to stand for, where nothing has been encoded.
PER_TOKEN = 3
# Forward and backward, of each parameter and token.
FLOPS = 6


@dataclass(frozen=True, kw_only=True)
class StageForecast:
    """The forecast of one stage.

    Attributes:
        tokens: that it trains on; None where it trains nothing.
        flops: 6 of each parameter and token; None where it trains nothing, or no size is known.
        seconds: that it took, or else will take at 0.4 of the fastest matrix product here.
        finished: whether it is done.
    """

    key: str
    title: str
    tokens: int | None
    flops: int | None
    seconds: float | None
    finished: bool


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The forecast of all stages.

    Attributes:
        parameters: of the base; None where they cannot be told.
    """

    rows: tuple[StageForecast, ...]
    parameters: int | None

    @property
    def left(self) -> float:
        """Seconds of the stages that train and are not finished."""
        return sum((one.seconds or 0.0 for one in self.rows if not one.finished), 0.0)

    def to_json(self) -> dict[str, Any]:
        """Return the forecast as plain numbers and texts."""
        stages = [asdict(one) for one in self.rows]
        return {"parameters": self.parameters, "seconds_left": self.left, "stages": stages}

    def table(self) -> Any:
        """Return the table of the forecast for a terminal."""
        from rich.table import Table
        from rich.text import Text

        size = "?" if self.parameters is None else f"{self.parameters:,}"
        table = Table(
            box=None,
            pad_edge=False,
            header_style="dim",
            title_justify="left",
            caption_justify="left",
            caption=Text(
                f"A base of {size} parameters; {duration(self.left)} of training left, by formula: "
                f"6 FLOPs of each parameter and token at {ASSUMED:g} of the fastest matrix "
                "product here. What is read and asked comes on top."
            ),
        )
        for heading in ("stage", "tokens", "FLOPs", "time", "", "folder"):
            table.add_column(heading, justify="right" if heading in _NUMBERS else "left")
        for one in self.rows:
            table.add_row(
                Text(one.title),
                "" if one.tokens is None else f"{one.tokens:,}",
                "" if one.flops is None else amount(one.flops),
                "" if one.seconds is None else duration(one.seconds),
                "finished" if one.finished else "",
                Text(one.key, style="dim"),
            )
        return table


_NUMBERS = ("tokens", "FLOPs", "time")


def forecast(recipe: AdaptationRecipe, stages: Sequence[Stage], shelf: StageStore) -> Forecast:
    """Return a forecast of what the stages of a recipe take.

    Raises:
        UserError: the base's recipe, or the rows of tuning, cannot be read.
    """
    arms = recipe.arms()
    size = _parameters(recipe, stages, shelf)
    peak = None
    rows = []
    for stage in stages:
        tokens = _tokens(arms[stage.arms[0]], stage)
        flops = FLOPS * size * tokens if tokens is not None and size is not None else None
        kept = shelf.read(stage.key)
        seconds = kept["seconds"] if kept else None
        if kept is None and flops is not None:
            peak = peak or matmul_peak(recipe.run.device, "fp32", recipe.run.threads)
            seconds = flops / (ASSUMED * peak)
        rows.append(
            StageForecast(
                key=stage.key,
                title=stage.title(len(arms)),
                tokens=tokens,
                flops=flops,
                seconds=seconds,
                finished=kept is not None,
            )
        )
    return Forecast(rows=tuple(rows), parameters=size)


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
        sizes = map(_bytes, recipe.sft.sources)
        return round(recipe.sft.num_train_epochs * sum(sizes) / PER_TOKEN)
    return None


def _bytes(section: RowsSection) -> int:
    if section.limit is not None:
        turns = (turn for row in rows_of(section) for turn in row.turns)
        return sum(len(turn.text.encode()) for turn in turns)
    place = find_text(section.path)
    inside = [one for one in place.rglob("*") if one.is_file()] if place.is_dir() else [place]
    return sum(one.stat().st_size for one in inside)


def _parameters(recipe: AdaptationRecipe, stages: Sequence[Stage], shelf: StageStore) -> int | None:
    """Return the number of parameters of the base, as it was found or as it is designed."""
    base = next(one for one in stages if one.kind == "base")
    if kept := shelf.read(base.key):
        return int(kept["result"]["parameters"])
    training = recipe.training()
    if training is not None:
        sized = training.change({"model.vocab": training.model.vocab or training.data.vocab_size})
        return count_costs(sized).parameters
    return _configure(str(recipe.base.model))


def _configure(name: str) -> int | None:
    """Return the number of parameters of a configuration, without its weights.

    None where there is none at hand.
    """
    from layerlab.loading.weightless import empty
    from layerlab.loading.weights import configuration

    try:
        with quiet_libraries():
            folder = find_folder(name, whole=False)
            model = empty(configuration(folder), str(folder))
    except UserError:  # no such name, no network, a strange configuration
        return None
    return sum(one.numel() for one in model.parameters())
