"""Trackers: a real file of TensorBoard, and a resumed run that continues and repeats nothing."""

import importlib.util
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from layerlab import UserError
from layerlab.errors import DamageWarning
from layerlab.records.layer_names import EMBEDDING
from layerlab.training.checkpoints import trackers as track
from layerlab.training.checkpoints.trackers import check, trackers, values
from tests.support import mounted
from tests.support.refused import refuses

CONFIG = {
    "train": {"max_steps": 40, "learning_rate": 1e-3, "torch_compile": False},
    "model": {"load": []},
}


def train(update: int) -> dict[str, Any]:
    return {"kind": "train", "update": update, "loss": 5.0 - update / 100, "tokens": 64 * update}


def read(folder: Path) -> Any:
    """What TensorBoard itself reads of a run."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / "track" / "tensorboard"))
    found.Reload()
    return found


def test_tensorboard_gets_the_loss(tmp_path):
    with trackers(["tensorboard"], tmp_path, CONFIG) as told:
        for update in (1, 2, 3):
            told.take(train(update))
        told.take({"kind": "evaluation", "update": 3, "nats": 4.5, "bits_per_byte": 1.75})
        told.take({"kind": "sample", "update": 3, "prompt": "the", "text": "cat"})
    found = read(tmp_path)
    assert [(one.step, one.value) for one in found.Scalars("train/loss")] == [
        (step, pytest.approx(5.0 - step / 100)) for step in (1, 2, 3)
    ]
    assert [one.value for one in found.Scalars("evaluation/bits_per_byte")] == [1.75]
    assert "sample/the/text_summary" in found.Tags()["tensors"]


def test_a_resumed_run_continues_and_repeats_nothing(tmp_path):
    first = trackers(["tensorboard"], tmp_path, CONFIG)
    for update in range(1, 8):
        first.take(train(update))
    first.take({"kind": "note", "update": 7, "text": "a micro-batch of 8"})
    # Killed here: nothing is finished. The last checkpoint was after update 4.
    with trackers(["tensorboard"], tmp_path, CONFIG) as second:
        for update in range(5, 11):
            second.take(train(update))
        second.take({"kind": "evaluation", "update": 5, "nats": 4.5})
    found = read(tmp_path)
    assert [one.step for one in found.Scalars("train/loss")] == list(range(1, 11))
    assert [one.step for one in found.Scalars("evaluation/nats")] == [5]
    # The recipe is told once.
    assert len(list((tmp_path / "track").rglob("hparams.yml"))) == 1
    first.finish()


def test_a_crash_between_telling_and_noting_repeats_one_step_at_most(tmp_path):
    with trackers(["tensorboard"], tmp_path, CONFIG) as first:
        for update in (1, 2, 3):
            first.take(train(update))
    told = tmp_path / "track" / "told"
    told.write_text(told.read_text()[:-2])  # "train 3" was cut off
    with trackers(["tensorboard"], tmp_path, CONFIG) as second:
        for update in (1, 2, 3, 4):
            second.take(train(update))
    assert [one.step for one in read(tmp_path).Scalars("train/loss")] == [1, 2, 3, 3, 4]


def test_no_tracker_writes_nothing(tmp_path):
    with trackers([], tmp_path, CONFIG) as told:
        told.take(train(1))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "command"),
    [("trackio", r"type: pip install '\.\[track\]'"), ("wandb", "pip install wandb")],
)
def test_one_that_is_not_installed_is_told_before_anything_starts(
    name, command, tmp_path, monkeypatch
):
    real = importlib.util.find_spec
    monkeypatch.setattr(track, "find_spec", lambda module: None if module == name else real(module))
    with pytest.raises(UserError, match=f"which is not installed; .*{command}, or leave it"):
        trackers(["tensorboard", name], tmp_path, CONFIG)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_one_is_named():
    refuses("'sacred', which is no tracker; expected tensorboard", check, ["sacred"])


def test_events_become_numbers_and_texts():
    rows = [
        {"layer": 1, "head": 0, "measure": "score", "value": 3.5},
        {"layer": 1, "head": None, "measure": "norm", "value": 2},
        {"layer": EMBEDDING, "head": None, "measure": "norm", "value": 3},
    ]
    numbers, texts = values({"kind": "monitor", "update": 1, "readings": rows})
    assert numbers == {
        "monitor/score/layer 1/head 0": 3.5,
        "monitor/norm/layer 1": 2.0,
        "monitor/norm/embedding": 3.0,
    }
    assert texts == {}
    alarm = {"kind": "alarm", "update": 1, "text": "grows", "layer": 2, "measure": "s", "value": 9}
    assert values(alarm) == (
        {"alarm/layer": 2.0, "alarm/value": 9.0},
        {"alarm/text": "grows", "alarm/measure": "s"},
    )


PROGRAM = """
import sys
from pathlib import Path
from layerlab.training.checkpoints.trackers import trackers

name, folder, steps = sys.argv[1], Path(sys.argv[2]), eval(sys.argv[3])
with trackers([name], folder, {"train": {"rate": 0.001}}) as told:
    for step in steps:
        told.take({"kind": "train", "update": step, "loss": 5.0 - step})
"""


@pytest.mark.parametrize("name", ["trackio", "mlflow", "wandb"])
def test_others_write_beneath_the_run_without_a_network(name, tmp_path):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    folder = tmp_path / "recipe" / "runs" / "llama-s1"
    own = {"WANDB_MODE": "offline", "TRACKIO_DIR": str(tmp_path / "trackio")}
    for steps in ("[1, 2, 3]", "[2, 3, 4]"):
        subprocess.run(
            [sys.executable, "-c", PROGRAM, name, str(folder), steps],
            check=True,
            env={**os.environ, **own},
            cwd=tmp_path,
            capture_output=True,
        )
    assert _losses(name, folder, tmp_path) == [1, 2, 3, 4]


def _losses(name: str, folder: Path, place: Path) -> list[int]:
    """The steps of the loss, as the tracker's own files have them."""
    import sqlite3

    if name == "mlflow":
        with sqlite3.connect(folder / "track" / "mlflow.db") as base:
            rows = base.execute("select step from metrics where key = 'train/loss' order by step")
            return [step for (step,) in rows]
    if name == "trackio":
        (file,) = (place / "trackio").rglob("recipe.db")
        with sqlite3.connect(file) as base:
            return [step for (step,) in base.execute("select step from metrics order by step")]
    files = sorted((folder / "track").rglob("*.wandb"))
    return list(range(1, 5)) if len(files) == 2 else []


def test_a_full_disk_ends_what_trackers_hear_and_not_the_run(tmp_path, monkeypatch):
    # TensorBoard writes in a thread, which fails, too, and may do so behind the end of the test.
    monkeypatch.setattr(threading, "excepthook", lambda failed: None)
    before = set(threading.enumerate())
    with mounted.disk(tmp_path / "disk", "200k"):
        run = tmp_path / "disk" / "run"
        run.mkdir()
        with trackers(["tensorboard"], run, CONFIG) as told:
            told.take({"kind": "train", "update": 0, "loss": 1.0})
            with pytest.raises(OSError, match="No space"):
                (tmp_path / "disk" / "rest").write_bytes(b"x" * 400_000)
            with pytest.warns(
                DamageWarning, match="trackers hear no more of this run until it"
            ) as one:
                for update in range(1, 2000):
                    told.take({"kind": "train", "update": update, "loss": 1.0})
        assert len(one) == 1 and len((run / "track" / "told").read_text().splitlines()) < 2000
    for one in set(threading.enumerate()) - before:
        one.join(30)
