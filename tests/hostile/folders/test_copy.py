"""Copies of checkpoints and notes that the user keeps among those of a run."""

import shutil
from pathlib import Path

import pytest

from layerlab.adaptation.pretraining.replay import ReplayData
from layerlab.adaptation.pretraining.train import pretrain
from layerlab.adaptation.trainer.own_folder import BEGUN, remove_checkpoints
from layerlab.recipes.adaptation_sections import PretrainSection
from layerlab.records.checkpoint_names import remove_checkpoints as remove_steps
from layerlab.records.file_digests import seal_folder
from tests.adaptation.small import LAW, llama, words, written
from tests.training.test_trainer import begun


@pytest.mark.full
def test_a_run_that_ends_removes_its_own_checkpoints(tmp_path, cache):
    training = begun(tmp_path / "run")
    training.advance()
    training.checkpoint()
    place = tmp_path / "run" / "checkpoints"
    shutil.copytree(place / "step-00000001", place / "best-so-far")
    (place / "notes.txt").write_text("mine")
    while not training.done:
        training.advance()
    training.checkpoint()
    training.finish()
    assert sorted(one.name for one in place.iterdir()) == ["best-so-far", "notes.txt"]
    assert len(list((place / "best-so-far").iterdir())) == 3


@pytest.mark.full
def test_a_checkpoint_with_a_note_of_the_users_outlives_newer_ones(tmp_path, cache):
    training = begun(tmp_path / "run")
    place = tmp_path / "run" / "checkpoints"
    for number in range(4):
        training.advance()
        training.checkpoint()
        if number == 0:
            (place / "step-00000001" / "notes.txt").write_text("mine")
    names = sorted(one.name for one in place.iterdir())
    assert names[0] == "step-00000001" and names[-1] == "step-00000004" and len(names) < 4


@pytest.mark.parametrize(
    ("name", "stays"),
    [
        ("step-00000002/state.json", False),
        (".step-00000002.0a1b2c3d.partial/state.json", False),
        ("step-00000002/notes.txt", True),
        ("step-2/state.json", True),
        ("step-00000002-copy/state.json", True),
        ("notes.txt", True),
    ],
)
def test_what_has_no_name_of_a_checkpoint_stays(name, stays, tmp_path):
    place = tmp_path / "checkpoints"
    file = place / name
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    remove_steps(place)
    assert file.exists() == stays and place.exists() == stays
    remove_steps(place)


def sealed(folder: Path) -> Path:
    folder.mkdir()
    (folder / "model.safetensors").write_text("weights")
    seal_folder(folder)
    return folder


def test_a_stage_that_ends_removes_its_own_checkpoints(tmp_path):
    for number in (2, 10, 30):
        sealed(tmp_path / f"checkpoint-{number}")
    sealed(tmp_path / "checkpoint-keep-this")
    sealed(tmp_path / "checkpoint-2-best")
    (sealed(tmp_path / "checkpoint-4") / "notes.txt").write_text("mine")
    (tmp_path / "checkpoint-notes.txt").write_text("mine")
    (sealed(tmp_path / "checkpoint-5") / ".git").mkdir()  # as whoever pushes it to the Hub begins
    for name in ("checkpoint-6", "checkpoint-8"):  # without a seal, the first of them by a call
        (tmp_path / name).mkdir()
        (tmp_path / name / "optimizer.pt").write_text("half")
    (tmp_path / BEGUN).write_text("checkpoint-6\n")
    mine = [
        *("checkpoint-2-best", "checkpoint-4", "checkpoint-5", "checkpoint-8"),
        *("checkpoint-keep-this", "checkpoint-notes.txt"),
    ]
    remove_checkpoints(tmp_path, keep=2)
    held = sorted(one.name for one in tmp_path.glob("checkpoint-*"))
    assert held == sorted([*mine, "checkpoint-10", "checkpoint-30"])
    remove_checkpoints(tmp_path)
    assert sorted(one.name for one in tmp_path.glob("checkpoint-*")) == mine


@pytest.mark.full
def test_old_checkpoints_give_way_and_copies_of_them_stay(tmp_path):
    out = tmp_path / "out"

    def copy(said: str, share: float | None) -> None:
        (out / ".model.partial").mkdir(parents=True, exist_ok=True)
        (out / ".model.partial" / "modeling.py").write_text("mine")
        if (out / "checkpoint-1").exists() and not (out / "checkpoint-1-best").exists():
            shutil.copytree(out / "checkpoint-1", out / "checkpoint-1-best")

    pretrain(
        llama(),
        words(),
        ReplayData(
            domain=written(tmp_path / "law.jsonl", LAW, 40, 1),
            general=None,
            validation=0.2,
            cache=tmp_path / "cache",
        ),
        section=PretrainSection(tokens=80, batch_size=2, block_size=8, ratio=(1, 0)),
        out=out,
        progress=copy,
        use_cpu=True,
        save_steps=1,
        save_total_limit=2,
    )
    held = sorted(one.name for one in out.glob("checkpoint-*"))
    assert held == ["checkpoint-1-best", "checkpoint-4", "checkpoint-5"]
    assert (out / ".model.partial" / "modeling.py").read_text() == "mine"
    assert not (out / "model" / "modeling.py").exists() and (out / "model" / "config.json").exists()
    assert [one.name for one in out.glob(".model.*")] == [".model.partial"]
