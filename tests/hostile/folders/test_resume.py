"""What an earlier session left, changed before the next one: checkpoints, stages, folded runs."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import torch

from layerlab.adaptation.pipeline.stage import Stage, StageStore
from layerlab.adaptation.trainer.resume import newest_checkpoint
from layerlab.builtin import path
from layerlab.experiments.executors.local import run_all
from layerlab.loading.weights.saved import load_saved
from layerlab.recipes.training_sections import RunSection
from layerlab.records.events import LONGEST, read
from layerlab.records.file_digests import check_seal, seal_folder
from layerlab.records.parquet.folded_runs import CURVES, MANIFESTS, unfold_runs
from layerlab.records.parse import digest_of, seal
from layerlab.training.checkpoints import checkpoint
from layerlab.training.checkpoints.trackers import _keys, _last
from tests.experiments.executors.test_local import Heard, command, runs
from tests.support.refused import refuses
from tests.training.test_trainer import begun


def rewrite(file: Path, **change: Any) -> None:
    """Change a table and seal it anew, as who can write it can."""
    body = {**json.loads(file.read_text()), **change}
    body.pop("self")
    file.write_text(json.dumps({**body, "self": checkpoint._seal(body)}))


def optimizer_of_another(folder: Path) -> None:
    held = torch.load(folder / "optimizer.pt", weights_only=True)
    torch.save({**held, "optimizer": {"state": {}, "param_groups": []}}, folder / "optimizer.pt")
    rewrite(
        folder / "state.json",
        sha256={
            one.name: checkpoint.hash_file(one)
            for one in folder.iterdir()
            if "json" not in one.name
        },
    )


def unhashed(folder: Path) -> None:
    (folder / "optimizer.pt").unlink()
    os.mkfifo(folder / "optimizer.pt")
    rewrite(folder / "state.json", sha256={})


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "counters": (lambda one: rewrite(one / "state.json", counters=[2]), "counts no updates"),
    "no hashes": (unhashed, "does not name its files"),
    "optimizer": (optimizer_of_another, "is not that of this run"),
}


pytestmark = pytest.mark.usefixtures("cache")


@pytest.mark.full
@pytest.mark.parametrize("name", DAMAGES)
def test_a_checkpoint_that_is_sealed_anew_is_no_traceback(name, tmp_path):
    training = begun(tmp_path / "run")
    training.advance()
    training.checkpoint()
    damage, said = DAMAGES[name]
    damage(next((tmp_path / "run" / "checkpoints").iterdir()))
    if name == "optimizer":
        refuses(said, begun, tmp_path / "run")
    else:
        state, notes = checkpoint.load(tmp_path / "run" / "checkpoints")
        assert state is None and said in notes[0]


def test_what_trackers_were_told_is_read_as_what_it_is(tmp_path):
    (tmp_path / "told").write_text("train \u00b2\ntrain 7\n")
    assert _last(tmp_path / "told") == {"train": 7}
    for content in ("[]", '{"wandb": 3}', '{"wandb": {}}', "nothing"):
        (tmp_path / "keys.json").write_text(content)
        assert _keys(tmp_path, ["wandb"])["wandb"]["begun"] is False
    (tmp_path / "told").unlink()
    os.mkfifo(tmp_path / "told")
    refuses("is a pipe; expected a file", _last, tmp_path / "told")


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """Two checkpoints of Trainer, as far as they are looked at before they are read."""
    for step in (2, 4):
        folder = tmp_path / "run" / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
        (folder / "optimizer.pt").write_bytes(b"moments")
        seal_folder(folder, plan=digest_of({"seed": 0}))
    (tmp_path / "run" / "plan.json").write_text('{"seed": 0}')
    (tmp_path / "run" / "checkpoint-6").mkdir()  # it was being written
    return tmp_path / "run"


def pickled(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"")
    seal_folder(folder)


def stepped(folder: Path) -> None:
    (folder / "trainer_state.json").write_text('{"global_step": 400}')
    seal_folder(folder)


def piped(folder: Path) -> None:
    (folder / "optimizer.pt").unlink()
    os.mkfifo(folder / "optimizer.pt")


CHANGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "edited": (
        lambda one: (one / "trainer_state.json").write_text('{"global_step": 4, "x": 1}'),
        "trainer_state.json is not what was written",
    ),
    "gone": (lambda one: (one / "optimizer.pt").unlink(), "optimizer.pt is missing"),
    "pipe": (piped, "optimizer.pt' is a pipe"),
    "more": (lambda one: (one / "scaler.pt").write_bytes(b""), "scaler.pt was not there"),
    "pickled": (pickled, "is no checkpoint of that name"),
    "ahead": (stepped, "is no checkpoint of that name"),
    "table": (lambda one: (one / "files.json").write_text("[1]"), "is not what was written"),
    "list": (
        lambda one: (one / "files.json").write_text(json.dumps(seal({"files": [1]}))),
        "names no files",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_checkpoint_of_trainer_is_passed_over(name, trained):
    assert newest_checkpoint(trained) == (str(trained / "checkpoint-4"), [])
    change, said = CHANGES[name]
    change(trained / "checkpoint-4")
    found, notes = newest_checkpoint(trained)
    assert found == str(trained / "checkpoint-2")
    (note,) = notes
    assert note.startswith("checkpoint-4 is damaged") and said in note


def test_a_seal_covers_files_in_folders_and_no_hidden_ones(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "file").write_text("a")
    seal_folder(tmp_path)
    (tmp_path / ".lock").touch()
    check_seal(tmp_path)
    (tmp_path / "deep" / "file").write_text("b")
    with pytest.raises(ValueError, match=r"deep/file is not what was written"):
        check_seal(tmp_path)


@pytest.mark.parametrize("what", ["model", "words", "text"])
def test_what_a_stage_left_is_what_the_next_one_reads(what, tmp_path):
    store = StageStore(tmp_path)
    stage = Stage(kind="clean", settings={"seed": len(what)})
    folder = store.of(stage.key)
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "model.safetensors").write_bytes(b"weights")
    (folder / "text.jsonl").write_text("a text")
    store.finish(stage, {"model": "model", "words": "model"}, 1.0)
    file = folder / ("text.jsonl" if what == "text" else "model/model.safetensors")
    file.write_bytes(b"forged")
    reader = {"text": store.check, "model": store.model, "words": store.words}[what]
    refuses(f"{file.name} is not what was written; delete it and", reader, stage.key)


@pytest.mark.full
def test_folded_runs_that_unpack_without_end_are_refused(tmp_path):
    one = pyarrow.array(["A" * (1 << 20)])
    texts = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 600, pyarrow.int32()), one)
    table = pyarrow.table({"run": ["r"] * 600, "text": texts})
    pyarrow.parquet.write_table(table, tmp_path / CURVES, compression="zstd")
    assert (tmp_path / CURVES).stat().st_size < 2000
    names = ("run", "run.json", "recipe.json", "manifest.json", "result.json")
    head = pyarrow.table({name: ["r" if name == "run" else "{}"] for name in names})
    pyarrow.parquet.write_table(head, tmp_path / MANIFESTS)
    refuses("unpacks to more than 256 MiB", unfold_runs, tmp_path)
    assert not (tmp_path / "runs").exists()


@pytest.mark.full
def test_a_journal_of_one_line_without_end_is_refused(tmp_path):
    with (tmp_path / "events.jsonl").open("wb") as file:
        file.truncate(LONGEST + 2)
    refuses("has a line of more than 64 MiB, which is no event", list, read(tmp_path))


@pytest.mark.full
def test_jobs_import_nothing_from_the_folder_they_are_started_in(tmp_path, monkeypatch):
    mark = tmp_path / "mark"
    (tmp_path / "submitit.py").write_text(f"open({str(mark)!r}, 'w'); raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    settings = RunSection(executor="submitit", max_parallel=1)
    (outcome,) = run_all(runs("only"), tmp_path / "runs", settings, Heard(), command("run"))
    assert outcome.ending == "finished" and not mark.exists()


def test_a_model_that_was_trained_is_read_from_safetensors_alone(tmp_path):
    shutil.copytree(path("llama"), tmp_path / "model")
    assert load_saved(tmp_path / "model").config.model_type == "llama"
    (tmp_path / "model" / "model.safetensors").rename(tmp_path / "model" / "pytorch_model.bin")
    refuses("has only pickled weights", load_saved, tmp_path / "model")
