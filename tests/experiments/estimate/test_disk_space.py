"""What a plan says of the disk, against the files of real runs."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from layerlab.api.train import compare_task, prepare
from layerlab.console.progress import NullProgress
from layerlab.experiments.estimate.disk_space import (
    checkpoint_bytes,
    journal_bytes,
    kept_bytes,
    moment_bytes,
    page_bytes,
)
from layerlab.experiments.session import estimate_task
from layerlab.training.trainer import Trainer
from tests.training.support.planned import unmeasured  # noqa: F401  its fixture

pytestmark = pytest.mark.full

SMALL: dict[str, Any] = {
    "model": {"width": 32, "layers": 2, "heads": 2, "context": 16},
    "data": {"vocab_size": 300},
    "train": {"max_steps": 20, "batch_size": 2},
    "evaluate": {"max_eval_blocks": 4, "prompts": ["The "], "max_new_tokens": 4},
    "monitor": {"interval": 10},
}


def size(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths if path.is_file())


@pytest.mark.full
@pytest.mark.parametrize("model", [True, False])
def test_a_comparison_takes_what_its_plan_says(tmp_path, model):
    compare = {"arms": ["llama", "gpt2"], "seeds": [1], "lockstep": True}
    given = {**SMALL, "compare": compare, "run": {"save_model": model}}
    task = prepare(given, tmp_path / "out", progress=False)
    found = estimate_task(task, several=True)
    compare_task(task, progress=False)
    for side, run in zip(found.sides, task.runs, strict=True):
        folder = task.folder(run)
        assert not (folder / "checkpoints").exists() and (folder / "model").exists() == model
        assert 0.7 < side.disk / size(folder.rglob("*")) < 1.4
        assert 0.7 < journal_bytes(run.recipe) / size([folder / "events.jsonl"]) < 1.4
    under_way = sum(side.checkpoints for side in found.sides)
    assert 0.9 < (found.disk - under_way) / size((tmp_path / "out").rglob("*")) < 1.1


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_run_under_way_takes_what_its_checkpoints_take(tmp_path, optimizer):
    # Wide enough that what Muon does not keep is more than the files are beside it.
    given = {
        **SMALL,
        "model": {**SMALL["model"], "width": 64},
        "train": {**SMALL["train"], "optimizer": optimizer},
    }
    (run,) = prepare(given, tmp_path / "out", progress=False).runs
    training = Trainer(run, tmp_path / "run", NullProgress())
    training.start()
    for _ in range(10):
        training.advance()
    two = size((tmp_path / "run" / "checkpoints").rglob("*"))
    # A third is written before the first goes.
    assert 0.8 < checkpoint_bytes(run.recipe) / (two * 3 / 2) < 1.2
    moments = [one for held in training.optimizer.state.values() for one in held.values()]
    kept = sum(one.nbytes for one in moments if one.dim())
    assert moment_bytes(run.recipe) == kept


def test_what_is_not_kept_is_not_counted(tmp_path):
    (run,) = prepare(SMALL, tmp_path / "out", progress=False).runs
    recipe = run.recipe
    assert kept_bytes(recipe.change({"run.save_model": False})) < kept_bytes(recipe) / 5
    # Never more than are written: one after each of 20 updates but the last.
    assert checkpoint_bytes(recipe.change({"run.save_steps": 20})) == 0
    one = checkpoint_bytes(recipe.change({"run.save_steps": 10}))
    assert checkpoint_bytes(recipe) == 3 * one > 0
    short = {"train.max_steps": 5, "evaluate.eval_steps": 5}
    assert checkpoint_bytes(recipe.change(short)) == 3 * one  # after each of its updates
    for less in ({"monitor.interval": 0}, {"evaluate.prompts": []}):
        assert journal_bytes(recipe.change(less)) < journal_bytes(recipe)
    assert page_bytes(2_000) - page_bytes(1_000) == page_bytes(1_000) - page_bytes(0) > 1_000
