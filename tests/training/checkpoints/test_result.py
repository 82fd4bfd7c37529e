"""The end of a run on a disk that is full: nothing half-written, and the same again finishes."""

import os
import re
from pathlib import Path

import pytest

from layerlab import train
from layerlab.training.checkpoints import result
from tests.support import mounted
from tests.support.refused import refuses

pytestmark = pytest.mark.full

SMALL = {
    "name": "small",
    "model": {"width": 64, "layers": 1, "heads": 2, "context": 16},
    "data": {"vocab_size": 2048},
    "train": {"max_steps": 3, "batch_size": 2},
    "evaluate": {"max_eval_blocks": 2},
}


def test_what_replaces_a_checkpoint_is_on_the_disk_before_it_goes(tmp_path, monkeypatch, cache):
    forced: list[str] = []
    fsync = os.fsync

    def force(opened: int) -> None:
        forced.append(Path(f"/proc/self/fd/{opened}").readlink().name)
        fsync(opened)

    def remove(folder: Path) -> None:
        assert {"result.json", "model.safetensors", folder.parent.name} <= set(forced)
        forced.append("removed")

    monkeypatch.setattr(os, "fsync", force)
    monkeypatch.setattr(result, "remove_checkpoints", remove)
    train(SMALL, out=tmp_path, progress=False)
    assert "removed" in forced


@pytest.mark.parametrize(
    ("checkpoint", "then"),
    [(2, "goes on from update 2"), pytest.param(9, "begins anew", marks=pytest.mark.full)],
)
def test_a_model_that_finds_no_room(tmp_path, cache, checkpoint, then):
    place = tmp_path / "disk"
    # Room for the checkpoint of update 2, and not for the model beside it.
    size = "4500k" if checkpoint == 2 else "300k"
    settings = {"run.save_steps": checkpoint}
    with mounted.disk(place, size):
        said = (
            r"cannot write .*/model: no space is left on the device; make room there, then type "
            rf"the same command, which {then}"
        )
        refuses(said, train, SMALL, out=place, progress=False, settings=settings)
        (folder,) = (place / "small" / "runs").iterdir()
        left = {one.name for one in folder.iterdir()}
        assert "result.json" not in left and "model" not in left
        assert not [name for name in left if re.search("partial", name)]
        mounted.grown(place, "40m")
        again = train(SMALL, out=place, progress=False, settings=settings)
        assert again.result["updates"] == 3 and again.model().config.hidden_size == 64
        assert again.result["resumes"] == (1 if checkpoint == 2 else 0)


def test_what_a_kill_left_of_a_model_goes_where_the_run_is_taken_up(tmp_path, cache):
    """And of its files; what a user has put there stays, whatever it is called."""
    train(SMALL, out=tmp_path, progress=False)
    (folder,) = (tmp_path / "small" / "runs").iterdir()
    (folder / "result.json").unlink()
    (folder / ".model.0a1b2c3d.partial").mkdir()
    (folder / ".model.0a1b2c3d.partial" / "model.safetensors").write_bytes(b"half")
    (folder / ".result.json.0a1b2c3d.partial").write_bytes(b"half")
    (folder / ".mine.partial").write_text("of the user")
    train(SMALL, out=tmp_path, progress=False)
    left = {one.name for one in folder.iterdir()}
    assert "result.json" in left
    assert {name for name in left if name.endswith("partial")} == {".mine.partial"}


def test_what_a_kill_left_of_checkpoints_goes_from_a_finished_run(tmp_path, cache):
    first = train(SMALL, out=tmp_path, progress=False)
    (folder,) = (tmp_path / "small" / "runs").iterdir()
    for name in ("step-00000002", ".step-00000001.0a1b2c3d.partial"):
        (folder / "checkpoints" / name).mkdir(parents=True)
        (folder / "checkpoints" / name / "model.safetensors").write_bytes(b"left")
    assert train(SMALL, out=tmp_path, progress=False).result == first.result
    assert not (folder / "checkpoints").exists()
