"""Small models trained for a study, and what is read of them: every arm of a seed on one order.

They learn Python's documentation, which comes with Python, in the words of the built-in models.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from layerlab.known_options import TRAINED
from layerlab.records.kept import read_kept, write_kept
from layerlab.studies.engine.code_hash import fingerprint
from layerlab.studies.engine.pictures import band, curves
from layerlab.studies.engine.sampling import Arrays, StudyContext, digest
from layerlab.studies.engine.scale import models
from layerlab.studies.engine.study import Picture
from layerlab.studies.support.stored_readings import (
    Shapes,
    check_shapes,
    find_readings,
    hash_readings,
)
from layerlab.system.write_errors import temporary_folder

if TYPE_CHECKING:
    from layerlab.loading.model import LoadedModel
    from layerlab.training.trainer import Trainer

PLAIN = "llama"
WORDS = "llama"
TEXT = "python-docs"
CONTEXT, BATCH, RATE = 128, 8, 3e-3
# Held-out blocks: of 128 tokens, enough to read a dimension at a width of 64.
HELD = 16
SIZES = {name: usual for name, (usual, _) in TRAINED.items()}
FAST: dict[str, Any] = {"layers": 2, "width": 32, "updates": 10}
ABOUT = (
    "Every model is trained here: on Python's documentation, one rate and one course of it for "
    "all, batches of 8 passages of 128 tokens, the same ones in the same order for all models of a "
    "seed; the feed-forward gives up as many parameters as an arm adds."
)
PAIRED = (
    "Intervals are Student's over the seeds, paired. The held-out text is one for all of them, 16 "
    "passages of 128 tokens: what another text would change is in no interval, and more seeds do "
    "not take it away."
)
# By columns of `feature_statistics.depths`.
SHOWN = (
    ("residual", "Share of the features that differs between tokens", "||JX|| / ||X||"),
    ("dimension", "Effective dimension", "d(0.8), as a share of the width"),
)
Parts = Mapping[str, Arrays]
# Where training keeps its choices there is room for one run in a process.
_ALONE = Lock()


@dataclass(frozen=True)
class Twin:
    """A trained model.

    Attributes:
        nats: on held-out text, per token.
        held: passages of that text.
    """

    subject: "LoadedModel"
    nats: float
    held: Tensor


ArmSeed = tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class ModelReading:
    """A reading that a study takes of its models.

    Attributes:
        kind: as the files of its readings are called.
        read: gives JSON values.
        shapes: of the numbers among them.
        asked: what readings that lie there must depend on besides model, text and code, in the fast
            mode too.
    """

    kind: str
    read: Callable[[Twin], dict[str, Any]]
    shapes: Shapes
    asked: Callable[[Mapping[str, Any]], str] = lambda found: ""


def recipe(arm: str, seed: int, *, layers: int, width: int, updates: int) -> Any:
    """Return the recipe by which one model is trained.

    The plain model beside it sets the number of parameters.
    """
    from layerlab.recipes.training import make_recipe

    return make_recipe(
        {
            "name": "twin",
            "model": {
                "width": width,
                "layers": layers,
                "heads": 4,
                "context": CONTEXT,
                "options": {"head": "untied"},
            },
            "data": {"sources": [{"text": TEXT}], "tokenizer": WORDS},
            "train": {"max_steps": updates, "batch_size": BATCH, "learning_rate": RATE},
            "evaluate": {"eval_steps": updates, "max_eval_blocks": HELD, "batch_size": HELD},
            "compare": {
                "baseline": PLAIN,
                "arms": list(dict.fromkeys([PLAIN, arm])),
                "seeds": [seed],
                "match": "parameters",
            },
            "run": {"save_model": False, "save_steps": updates},
        }
    )


def parameters(variant: str = PLAIN, *, layers: int, width: int) -> int:
    """Count the parameters of a model of these sizes; an arm matched to it has about as many."""
    # Late: a list of studies needs nothing that trains.
    from layerlab.model.cost.cost import account
    from layerlab.model.design import design
    from layerlab.tokenization.load import load_tokenizer

    sizes = {"layers": layers, "width": width, "heads": 4, "context": CONTEXT}
    found = design(
        variant,
        sizes={**sizes, "vocab": len(load_tokenizer(WORDS))},
        options={"head": "untied"},
    )
    return account(found.spec, found.shape).parameters


def train_one(arm: str, seed: int, **sizes: int) -> Twin:
    """Train one model of a variant; all models of a seed share their initial numbers and data."""
    with begin_training(recipe(arm, seed, **sizes), arm) as training:
        while not training.done:
            training.advance()
        nats = float(training.finish()["nats"])
        subject, held = read_trained(training)
    return Twin(subject, nats, held)


@contextmanager
def begin_training(asked: Any, arm: str) -> Iterator["Trainer"]:
    """Begin to train an arm of a recipe in a folder that goes again."""
    # Late: a list of studies needs nothing that trains.
    from layerlab.console.progress import NullProgress
    from layerlab.experiments.session import prepare
    from layerlab.training.trainer import Trainer

    with _ALONE, temporary_folder() as folder:
        task = prepare(asked, Path(folder), progress=False)
        (run,) = [one for one in task.runs if one.arm == arm]
        training = Trainer(run, task.folder(run), NullProgress())
        training.start()
        yield training


def read_trained(training: "Trainer") -> tuple["LoadedModel", Tensor]:
    """Return the model of a training, and the passages that are held out."""
    from layerlab.loading.model import load_model
    from layerlab.tokenization.load import load_tokenizer

    (blocks,) = training.eval_blocks.batches(HELD)
    found = load_model(training.model.eval(), tokenizer=load_tokenizer(WORDS))
    return found, blocks.inputs.clone()


def gather_arms(context: StudyContext, arms: Sequence[str]) -> tuple[Parts, tuple[str, ...]]:
    """Gather the loss and layers of every arm, seed by seed, with notes for the reader."""
    seeds = seeds_of(context)
    found, notes = kept_readings(context, [(arm, seed) for arm in arms for seed in seeds], DEPTH)
    return by_arm(found, arms, seeds), (ABOUT, PAIRED, *notes)


def by_arm(
    found: Mapping[ArmSeed, Mapping[str, Any]], arms: Sequence[str], seeds: Sequence[int]
) -> Parts:
    """Return the loss and the readings by layer of every arm, a row for each seed."""
    names = ("nats", "layers")
    return {
        arm: {name: np.array([found[arm, seed][name] for seed in seeds]) for name in names}
        for arm in arms
    }


def kept_readings(
    context: StudyContext, jobs: Sequence[ArmSeed], reading: ModelReading
) -> tuple[dict[ArmSeed, dict[str, Any]], list[str]]:
    """Return the readings of every model, and notes on those not trained just now.

    Readings that lie among the runs are taken from there. Others are trained for and left there;
    the fast mode trains small models for them instead, and leaves nothing.
    """
    sizes = {name: context.options[name] for name in SIZES}
    lying, code = stored_readings(context, jobs, reading), fingerprint(reading.read.__module__)
    small = context.fast and None in lying.values()
    if context.watcher is not None:
        context.watcher.begin(context.study, len(jobs))
    found, before, hours = {}, 0, list[float | None]()
    for number, job in enumerate(jobs):
        stored = None if small else lying[job]
        begun = time.perf_counter()
        found[job] = stored or reading.read(train_one(*job, **(FAST if small else sizes)))
        hours.append(_hours(stored, begun))
        if stored is None and not small:
            text = _source(reading, found[job])
            more = {"sizes": sizes, "text": text, "code": code, "hours": hours[-1]}
            write_kept(
                locate_readings(context.runs, reading.kind, *job, **sizes), {**found[job], **more}
            )
        before += stored is not None
        if context.watcher is not None:
            context.watcher.step(f"model {number + 1} of {len(jobs)}")
    context.done, context.kept = context.done + len(jobs), context.kept + before
    used = FAST if small else sizes
    tokens = used["updates"] * BATCH * CONTEXT
    context.judged = {
        "scale": models([parameters(layers=used["layers"], width=used["width"])], [tokens]),
        "trainings": {
            "models": len(jobs),
            "trained before": before,
            # What was left by an earlier version does not say.
            "hours": None if None in hours else round(sum(one or 0 for one in hours), 2),
        },
        "recipe": {
            "text": TEXT,
            "sequences per update": BATCH,
            "context": CONTEXT,
            "learning rate": RATE,
            "tokens": tokens,
        },
    }
    other = [one for one in lying.values() if one is not None and one.get("code") != code]
    return found, notes_on(len(jobs), before, small=small, other=0 if small else len(other))


def stored_readings(
    context: StudyContext, jobs: Sequence[ArmSeed], reading: ModelReading
) -> dict[ArmSeed, dict[str, Any] | None]:
    """Return what earlier trainings left, or None; in the fast mode by whatever code and text."""
    sizes = {name: context.options[name] for name in SIZES}
    code = None if context.fast else fingerprint(reading.read.__module__)

    def check(found: dict[str, Any]) -> None:
        check_shapes({"hours": None, **found}, {**reading.shapes, "hours": ()})

    def one(job: ArmSeed) -> dict[str, Any] | None:
        found = read_kept(locate_readings(context.runs, reading.kind, *job, **sizes), check)
        if found is None or code is None:
            fits = found is not None and _beside(found) == reading.asked(found)
        else:
            fits = (found.get("code"), found.get("text")) == (code, _source(reading, found))
        return found if fits else None

    return {job: one(job) for job in jobs}


def _source(reading: ModelReading, found: Mapping[str, Any]) -> str:
    """Return the identity of all that readings depend on besides the model and the code."""
    return f"{text_identity()} {reading.asked(found)}".strip()


def _beside(found: Mapping[str, Any]) -> str:
    """Return what readings depend on besides the model, the text and the code."""
    return str(found.get("text")).partition(" ")[2]


def notes_on(jobs: int, before: int, *, small: bool, other: int) -> list[str]:
    """Return the notes for a reader on models that were not trained just now.

    Args:
        other: how many of them other code trained and read.
    """
    sizes = ", ".join(f"{name} {size}" for name, size in FAST.items())
    notes = [f"No runs were at hand: {sizes} stand in for them."] * small
    if before:
        notes.append(f"Of {jobs} models {before} had been trained before, and are read.")
    if other:
        notes.append(
            f"Of these models {other} were trained and read by other code, or under other versions "
            "of Python or of a library: type it without --fast to train them again."
        )
    return notes


def text_identity() -> str:
    """Return the identity of the text, which is the documentation of the Python that runs."""
    # Late: a list of studies needs nothing that trains.
    from layerlab.data.sources import open_source
    from layerlab.recipes.training_sections import Source

    return open_source(Source(text=TEXT)).identity


def _hours(stored: Mapping[str, Any] | None, begun: float) -> float | None:
    """Return how long a model took, now or when it was trained."""
    return (time.perf_counter() - begun) / 3600 if stored is None else stored.get("hours")


def generator_of(context: StudyContext, number: int) -> torch.Generator:
    """Return the random numbers of a batch, as `StudyContext.sample` hands them out."""
    return torch.Generator().manual_seed(int(digest([context.seed, number])[:15], 16))


def seeds_of(context: StudyContext) -> list[int]:
    """Return a seed of training for every draw."""
    return [
        int(torch.randint(2**31, (), generator=generator_of(context, number)))
        for number in range(context.draws)
    ]


def locate_readings(runs: Path, kind: str, arm: str, seed: int, **sizes: int) -> Path:
    """Return the file for the readings of a model; another recipe has another file."""
    key = recipe(arm, seed, **sizes).hash()[:8]
    return find_readings(runs) / f"{kind}-{arm}-s{seed}-{key}.json"


def depth(twin: Twin) -> dict[str, Any]:
    """Return the loss and, by layer, what differs between tokens and the features' dimension."""
    from layerlab.studies.support.feature_statistics import depths

    return {"nats": twin.nats, "layers": depths(twin.subject, twin.held).tolist()}


DEPTH = ModelReading(kind="depth", read=depth, shapes={"nats": (), "layers": (None, 2)})


def readings(runs: Path) -> str:
    """Return a hash of all readings that lie among the runs."""
    return digest(hash_readings(runs))


# Of a study whose draws are the seeds of training.
DECLARED: dict[str, Any] = {
    "draws": 3,
    "unit": "seeds of training",
    "fast": {"draws": 3},
    "inputs": readings,
}


def rows(parts: Parts) -> Iterator[dict[str, Any]]:
    """Yield the rows for a table: every seed of every arm, layer by layer."""
    for arm, part in parts.items():
        for seed, layers in enumerate(part["layers"]):
            for layer, (residual, dimension) in enumerate(layers):
                yield {
                    "arm": arm,
                    "seed": seed,
                    "nats": float(part["nats"][seed]),
                    "layer": layer,
                    "relative residual": float(residual),
                    "d(0.8) / width": float(dimension),
                }


def plot(parts: Parts, column: int) -> Picture:
    """Plot one quantity by layer, with the range of the seeds."""
    name, title, y = SHOWN[column]
    return plot_layers(
        name,
        f"{title}, trained (mean of seeds, and their range)",
        {arm: part["layers"][..., column] for arm, part in parts.items()},
        y=y,
    )


def plot_layers(
    name: str, title: str, values: Mapping[str, np.ndarray], *, y: str, first: int = 0
) -> Picture:
    """Plot what every arm has, seed by layer, with the range of the seeds."""
    lines = []
    for kind, (arm, found) in enumerate(values.items()):
        layers = list(range(first, first + found.shape[1]))
        rows = found.min(0), found.mean(0), found.max(0)
        lines.append(band(arm, layers, rows, kind=kind))
    return curves(name, title, lines, x="layer, 0 behind the embedding", y=y, log="")
