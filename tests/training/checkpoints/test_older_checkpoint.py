"""A run of layerlab 0.1 that was killed behind its fourth update is found, and goes on from there.

The archive holds what it left: recipe and manifest with the names of then, a journal, a checkpoint.
"""

import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

import layerlab
from layerlab.experiments.session import prepare
from layerlab.records.run_files import RUNS
from layerlab.training.run_spec import read_run, write_run
from tests.training.test_worker import WORDS

CUT = Path(__file__).with_name("run_of_0_1.tar.xz")
NAME = "llama-s0-r0.001-8df3def0"
RECIPE = """
name = "old"
about = "a run of 0.1"
[model]
variant = "llama"
width = 8
layers = 1
heads = 2
context = 16
[data]
sources = [{ text = "text.txt" }]
vocab = 280
[train]
updates = 12
batch = 4
[evaluate]
blocks = 2
[run]
checkpoint = 2
"""
# What 0.1 itself came to from this checkpoint, and what it came to without an interruption.
NATS = 5.575270265340805


@pytest.mark.filterwarnings("ignore:.*is now called:FutureWarning")
def test_a_run_whose_text_lay_in_a_folder_is_found_by_its_older_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in/text.txt").write_text("".join(f"{number} {WORDS}" for number in range(400)))
    (tmp_path / "in/old.toml").write_text(RECIPE)
    out = tmp_path / "out"

    def planned():
        (run,) = prepare("in/old.toml", out, progress=False).runs
        return run

    run = planned()
    older = replace(run, as_written=True)
    assert older.name == "llama-s0-r0.001-96b732e2"
    write_run(older, out / "old" / RUNS / older.name)
    found = planned()
    assert found.identity == older.identity == read_run(out / "old" / RUNS / older.name).identity
    write_run(run, out / "old" / RUNS / run.name)  # what a later version began goes before it
    found = planned()
    assert found.identity == run.identity == read_run(out / "old" / RUNS / run.name).identity


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.*is now called:FutureWarning")
def test_a_run_of_0_1_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where the text is called what it was called then
    (tmp_path / "text.txt").write_text("".join(f"{number} {WORDS}" for number in range(400)))
    (tmp_path / "old.toml").write_text(RECIPE)
    folder = tmp_path / "out" / "old" / "runs" / NAME
    with tarfile.open(CUT) as archive:
        archive.extractall(folder.parent, filter="data")
    before = (folder / "events.jsonl").read_text().splitlines()
    layerlab.train("old.toml", out="out", progress=False)
    assert [one.name for one in folder.parent.iterdir() if one.name[0] != "."] == [NAME]
    result = json.loads((folder / "result.json").read_text())
    assert (result["updates"], result["resumes"]) == (12, 1)
    assert result["nats"] == pytest.approx(NATS, abs=1e-5)
    after = (folder / "events.jsonl").read_text().splitlines()
    assert after[: len(before)] == before
    updates = [event["update"] for event in map(json.loads, after) if event["kind"] == "train"]
    assert updates == list(range(1, 13))
