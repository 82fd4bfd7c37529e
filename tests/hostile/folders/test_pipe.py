"""Pipes in folders of other people that a command writes into, or goes on in: nobody waits."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from layerlab import UserError, builtin
from layerlab.adaptation.trainer.own_folder import check_own
from layerlab.experiments.executors.process import RunProcess, tail
from layerlab.records.file_digests import check_seal
from layerlab.records.heartbeat import last_update
from layerlab.records.parse import read_json
from layerlab.report.pages.study import language_of
from layerlab.studies.engine.runner import study
from layerlab.system.files import OWN, OnlyOwn, check_links, read_whole, write_folder
from layerlab.training.checkpoints.trackers import Trackers, _keys
from tests.hostile.attack import typed, unblock_pipes

TEXT = "A row of text that is long enough to matter for all of us who read it here."


@pytest.fixture(autouse=True)
def waiting(tmp_path: Path) -> Iterator[None]:
    with unblock_pipes(tmp_path):
        yield


def pipe(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    return path


@pytest.mark.parametrize("command", ["clean", "vocabulary", "embed", "export"])
def test_a_table_of_what_was_written_is_a_file(command, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"text": TEXT}) + "\n")
    pipe(tmp_path / "out" / OWN)
    words: dict[str, tuple[str, ...]] = {
        "clean": ("adapt", "clean", str(rows), "--out"),
        "vocabulary": (
            *("adapt", "vocabulary", "--tokenizer", "llama", "--corpus", str(builtin.SAMPLE)),
            *("--size", "+9", "--out"),
        ),
        "embed": ("adapt", "embed", "llama", "--tokenizer", "llama", "--out"),
        "export": ("evaluate", "--export-tasks"),
    }
    typed(*words[command], str(tmp_path / "out")).refused("written.json' is a pipe; expected")


def test_nor_is_one_opened_where_results_are_written(tmp_path):
    out = tmp_path / "out"
    study("rounding-input", draws=8, out=out, progress=False, threads=1)
    (out / "study.html").unlink()
    pipe(out / "study.html")
    words = ("study", "rounding-input", "--draws", "8", "--out", str(out), "-q")
    typed(*words).refused("study.html' is a pipe; expected a file")


@pytest.mark.parametrize("name", ["log.txt", "track/keys.json", "events.jsonl", "notes"])
def test_nor_where_a_run_goes_on(name, tmp_path):
    (tmp_path / "a.toml").write_text("train.max_steps = 2")
    pipe(tmp_path / "out" / "a" / "runs" / "llama-s0" / name)
    words = ("train", str(tmp_path / "a.toml"), "--out", str(tmp_path / "out"), "-q")
    typed(*words).refused("is a pipe; expected a file")


@pytest.mark.parametrize("command", ["runs", "compare"])
def test_nor_where_runs_are_listed_or_judged(command, tmp_path):
    place = tmp_path / "a"
    for name in ("events.jsonl", "manifest.json", "result.json"):
        pipe(place / "runs" / "llama-s0" / name)
    pipe(place / "comparison.json")
    if command == "runs":
        typed("runs", str(tmp_path), "--html", str(tmp_path / "i.html")).survived()
    else:
        typed("compare", str(place), "--judge", "-q").refused("is a pipe; expected a file")


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "links": ("x", check_links),
    "own": (OWN, OnlyOwn().others),
    "swap": (OWN, lambda one: write_folder(one, lambda _: None, "text", OnlyOwn())),
    "seal": ("files.json", check_seal),
    "table": ("manifest.json", lambda one: read_json(one / "manifest.json")),
    "whole": ("x", lambda one: read_whole(one / "x")),
    "pulse": ("events.jsonl", lambda one: last_update(one / "events.jsonl")),
    "log": ("log.txt", lambda one: tail(one / "log.txt", 3)),
    "process": ("log.txt", lambda one: RunProcess(one, [])),
    "language": ("study.html", lambda one: language_of(one / "study.html")),
    "keys": ("keys.json", lambda one: _keys(one, ["tensorboard"])),
    "told": ("told", lambda one: Trackers({"tensorboard": None}, one)),
    "model of a stage": ("model/.written.json", check_own),
}


@pytest.mark.parametrize("name", READERS)
def test_each_reader_looks_before_it_opens(name, tmp_path):
    file, read = READERS[name]
    pipe(tmp_path / "folder" / file)
    with pytest.raises(UserError, match="is a pipe; expected a file") as caught:
        read(tmp_path / "folder")
    assert "\n" not in str(caught.value)
