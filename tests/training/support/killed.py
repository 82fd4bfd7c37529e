"""Runs in processes that are killed: what a test of resuming starts, and what it compares."""

import json
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from layerlab.console.progress import NullProgress
from layerlab.corpus.corpus import extent, prepare
from layerlab.experiments.plan.plan import plan
from layerlab.recipes.training import TrainingRecipe, make_recipe
from layerlab.records.result import read_result
from layerlab.training import trainer
from layerlab.training.run_spec import RunSpec
from tests.support.forked import PROCESSES, READY

UPDATES = 14


def text(folder: Path) -> Path:
    """A text to train on: sentences of few words, drawn by a seed."""
    chance = random.Random(0)
    words = "the a cat dog sees chases small large red house tree and or under over".split()
    lines = [" ".join(chance.choices(words, k=9)) + ".\n" for _ in range(400)]
    file = folder / "text.txt"
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


def recipe(folder: Path, **settings: Any) -> TrainingRecipe:
    """A run of seconds, with dropout, several evaluations and a checkpoint every third update."""
    plain = {
        "model": {"width": 16, "layers": 2, "heads": 2, "context": 16, "options": {"dropout": 0.1}},
        "data": {"sources": [{"text": str(text(folder))}], "vocab_size": 260},
        "train": {"max_steps": UPDATES, "batch_size": 4, "learning_rate": 0.01},
        "evaluate": {"eval_steps": 4, "max_eval_blocks": 4},
        "run": {"save_steps": 3, "save_model": False},
    }
    return make_recipe(plain).change(settings)


def run_of(recipe: TrainingRecipe) -> RunSpec:
    corpus = prepare(recipe.data)
    return plan(recipe, extent(corpus, recipe.model.context or 0))[0]


def begun(run: RunSpec, folder: Path) -> trainer.Trainer:
    training = trainer.Trainer(run, folder, NullProgress())
    training.start()
    return training


class Seen(trainer.Trainer):
    """Leaves what the result does not hold, for the test to compare."""

    def finish(self, diverged: str | None = None) -> dict[str, Any]:
        held = {"weights": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(held, self.folder / "seen.pt")
        return super().finish(diverged)


def go(
    settings: dict[str, str], run: RunSpec, folder: Path, prepared: Callable[[], None] | None = None
) -> None:
    """Carry out a run in this process, which is a child that a test has started."""
    os.environ.update(settings)
    torch.set_num_threads(1)
    trainer.Trainer = Seen  # type: ignore[misc]
    if prepared is not None:
        prepared()
    trainer.train_run(run, folder)


class Fatal:
    """Kills the process at a certain one of the things it asks of the operating system.

    They are counted from the first that is about the folder of the run: what is imported and
    looked up before leaves nothing behind. Most of the others are asked while a checkpoint or a
    line of the journal is written.
    """

    def __init__(self, number: int, folder: Path) -> None:
        self.number = number
        self.folder = str(folder)
        self.begun = False

    def __call__(self) -> None:
        sys.addaudithook(self.heard)

    def heard(self, event: str, about: tuple[Any, ...]) -> None:
        if event in {"open", "os.rename", "os.mkdir", "os.listdir", "os.remove", "os.rmdir"}:
            self.begun = self.begun or str(about[0]).startswith(self.folder)
            self.number -= self.begun
            if self.number == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def started(*arguments: Any) -> Any:
    process = PROCESSES.Process(target=go, args=(dict(os.environ), *arguments))
    READY.start(process)
    return process


def finished(run: RunSpec, folder: Path) -> dict[str, Any]:
    """Carry a run out to its end."""
    process = started(run, folder)
    process.join()
    assert process.exitcode == 0
    result = read_result(folder)
    assert result is not None
    return result


def seen(folder: Path) -> dict[str, Any]:
    return dict(torch.load(folder / "seen.pt", weights_only=True))


def events(folder: Path) -> list[dict[str, Any]]:
    """All but what tells of the interruptions themselves, and without times."""
    found = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [
        {key: value for key, value in event.items() if key not in {"seconds", "runtime"}}
        for event in found
        if not (event["kind"] == "note" and event["text"].startswith("resumed after"))
    ]


def notes(folder: Path) -> list[str]:
    found = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [event["text"] for event in found if event["kind"] == "note"]
