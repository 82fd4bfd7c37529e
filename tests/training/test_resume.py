"""A run that is killed, stopped or short of memory comes to the same weights as one that is not."""

import json
import math
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from layerlab import UserError
from layerlab.records.result import read_result
from layerlab.system.signals import Stopped
from layerlab.training import trainer
from layerlab.training.checkpoints.checkpoint import load
from layerlab.training.run_spec import RunSpec
from tests.training.checkpoints.test_checkpoint import same
from tests.training.support import killed

TIMES = {"seconds", "tokens_per_second", "peak_memory_bytes", "resumes", "digest"}


@pytest.fixture(scope="module")
def place(cached: Path) -> Path:
    return cached


@pytest.fixture(scope="module")
def run(place: Path, request: pytest.FixtureRequest) -> RunSpec:
    optimizer = getattr(request, "param", "adamw")
    return killed.run_of(killed.recipe(place, **{"train.optimizer": optimizer}))


@pytest.fixture(scope="module")
def whole(place: Path, run: RunSpec) -> Path:
    """The run that nothing interrupts."""
    folder = place / run.name
    killed.finished(run, folder)
    return folder


both = pytest.mark.parametrize("run", ["adamw", "muon"], indirect=True)


def outcome(folder: Path) -> dict[str, Any]:
    found = read_result(folder)
    return {key: value for key, value in found.items() if key not in TIMES}


def equal(folder: Path, whole: Path) -> None:
    """To the bit: weights, moments, every loss that was written down, the result."""
    assert same(killed.seen(folder), killed.seen(whole))
    assert killed.events(folder) == killed.events(whole)
    assert outcome(folder) == outcome(whole)


@pytest.mark.full
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_killed_while_it_asks_something_of_the_system(tmp_path, run, whole, seed):
    chance, died = random.Random(seed), 0
    for _ in range(3):
        fatal = killed.Fatal(chance.randrange(1, 120), tmp_path)
        process = killed.started(run, tmp_path, fatal)
        process.join()
        died += process.exitcode == -signal.SIGKILL
    assert died > 0
    result = killed.finished(run, tmp_path)
    equal(tmp_path, whole)
    assert result["resumes"] <= died


@both
def test_killed_at_any_moment(tmp_path, run, whole):
    """Each time a little after the journal has come so far, wherever the process is by then."""
    chance, died = random.Random(0), 0
    for goal in (2, 5, 9, 12):
        process = killed.started(run, tmp_path)
        wait(lambda goal=goal: reached(tmp_path) >= goal)
        time.sleep(chance.uniform(0, 0.05))
        process.kill()
        process.join()
        died += process.exitcode == -signal.SIGKILL
    assert died > 0
    result = killed.finished(run, tmp_path)
    equal(tmp_path, whole)
    assert result["resumes"] > 0
    assert any(text.startswith("resumed after update ") for text in killed.notes(tmp_path))


@pytest.mark.full
def test_twenty_runs_killed_at_random_moments_after_a_checkpoint(tmp_path, run, whole):
    """Each goes on from a checkpoint, and not a bit of it differs."""
    chance, died = random.Random(0), 0
    while died < 20:
        folder = tmp_path / f"run-{died}"
        process = killed.started(run, folder)
        wait(lambda folder=folder: any((folder / "checkpoints").glob("step-*")))
        time.sleep(chance.uniform(0, 0.15))
        process.kill()
        process.join()
        # It was faster: with its result a run is finished, and is letting its checkpoints go.
        if process.exitcode != -signal.SIGKILL or (folder / "result.json").exists():
            shutil.rmtree(folder)
            continue
        died += 1
        assert killed.finished(run, folder)["resumes"] == 1
        equal(folder, whole)


def reached(folder: Path) -> int:
    """The last update of a journal, of which the last line may be half written."""
    file = folder / "events.jsonl"
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return max((json.loads(line)["update"] for line in lines), default=0)


def wait(ready: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < end, "the run does not come that far"
        time.sleep(0.002)


@pytest.mark.full
def test_a_damaged_checkpoint_costs_its_updates_and_no_more(tmp_path, run, whole):
    stopped_after(run, tmp_path, 8)
    newest = tmp_path / "checkpoints" / "step-00000008" / "model.safetensors"
    newest.write_bytes(newest.read_bytes()[:-8])
    killed.finished(run, tmp_path)
    said = [text for text in killed.notes(tmp_path) if "damaged" in text]
    assert said == [
        "checkpoint step-00000008 is damaged (model.safetensors is not what was written); "
        "the one before it is used"
    ]
    assert same(killed.seen(tmp_path), killed.seen(whole))


class Asking(trainer.Trainer):
    """A run that receives SIGTERM during an update."""

    moment = 0

    def advance(self) -> None:
        if self.update + 1 == self.moment:
            os.kill(os.getpid(), signal.SIGTERM)
        super().advance()


def stopped_after(run: RunSpec, folder: Path, update: int) -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stopped) as ended:
        patch.setattr(Asking, "moment", update)
        patch.setattr(trainer, "Trainer", Asking)
        trainer.train_run(run, folder)
    assert ended.value.code == 143


@pytest.mark.full
@both
def test_sigterm_leaves_a_checkpoint_of_the_very_update(tmp_path, run, whole):
    stopped_after(run, tmp_path, 8)
    state, remarks = load(tmp_path / "checkpoints")
    assert state is not None and state.counters["update"] == 8 and remarks == []
    assert read_result(tmp_path) is None
    result = killed.finished(run, tmp_path)
    assert result["resumes"] == 1
    equal(tmp_path, whole)


def test_a_loss_that_is_no_number_ends_the_run_and_names_the_module(place, tmp_path):
    """Nothing is broken by hand: the rate alone drives the weights out of float32."""
    run = killed.run_of(
        killed.recipe(place, **{"train.learning_rate": 1e30, "train.max_grad_norm": 0.0})
    )
    with pytest.raises(UserError, match=r"at update \d+; the .* is not finite|was not finite") as e:
        trainer.train_run(run, tmp_path)
    text = str(e.value)
    assert text.endswith("lower train.learning_rate (now 1e+30)") and "\n" not in text
    assert "model." in text or "lm_head" in text
    result = read_result(tmp_path)
    assert result is not None and result["diverged"] == text and result["nats"] is None
    assert killed.notes(tmp_path)[-1] == text


class Small(nn.Module):
    """Memory for so many sequences: a hook on a real model that fails as a full device does."""

    rows = 0

    def __call__(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        ids = kwargs["input_ids"]
        if module.training and len(ids) > self.rows:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def on_a_small_device(run: RunSpec, folder: Path, rows: int) -> tuple[dict[str, Any], Any]:
    hook, made = Small(), []
    hook.rows = rows

    def built(*arguments: Any) -> nn.Module:
        model = BUILT(*arguments)
        model.register_forward_pre_hook(hook, with_kwargs=True)
        made.append(model)
        return model

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "build_model", built)
        return trainer.train_run(run, folder), made[0]


BUILT = trainer.build_model


@pytest.mark.full
def test_out_of_memory_takes_smaller_pieces_and_learns_the_same(tmp_path, place):
    run = killed.run_of(killed.recipe(place, **{"model.options": {}, "train.batch_size": 5}))
    results, weights = {}, {}
    for rows in (5, 4, 1):
        results[rows], model = on_a_small_device(run, tmp_path / str(rows), rows)
        weights[rows] = {name: one.double() for name, one in model.state_dict().items()}
    assert [results[rows]["micro_batch"] for rows in (5, 4, 1)] == [5, 3, 1]
    told = [text for text in killed.notes(tmp_path / "1") if text.startswith("out of memory")]
    assert [text.split(" pieces of ")[1].split(",")[0] for text in told] == ["3", "2", "1"]
    for rows in (4, 1):
        assert results[rows]["tokens"] == results[5]["tokens"] == killed.UPDATES * 5 * 16
        assert math.isclose(results[rows]["nats"], results[5]["nats"], rel_tol=1e-4)
        assert results[rows]["weights"] != results[5]["weights"]
        for name, one in weights[5].items():
            assert (one - weights[rows][name]).norm() < 1e-3 * one.norm(), name


@pytest.mark.full
def test_a_single_sequence_that_does_not_fit_ends_the_run(tmp_path, run):
    with pytest.raises(UserError, match="not even one sequence of a batch fits into memory"):
        on_a_small_device(run, tmp_path, 0)
    assert read_result(tmp_path) is None
