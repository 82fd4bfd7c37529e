"""`layerlab evaluate` as typed: exit codes, words, and what a second time does."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from layerlab.records.parse import unseal
from tests.evaluation.written import boolq
from tests.support.forked import python

pytest.importorskip("lm_eval")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evaluate")
    boolq(folder / "data", True, False, True)
    return folder


def layerlab(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "COLUMNS": "100", "LAYERLAB_DATA": str(place / "none")}
    return python("-m", "layerlab", "evaluate", *words, cwd=place, env=env)


@pytest.fixture(scope="module")
def first(place: Path) -> subprocess.CompletedProcess[str]:
    """The one run that these tests share."""
    return layerlab(place, "pre-norm", "--suite", "boolq,law", "--data", "data", "--compare")


def test_a_run_says_scores_chance_and_what_is_left_out(place, first):
    assert first.returncode == 0, first.stderr
    head, columns, scores, how = first.stdout.splitlines()[:4]
    assert head.startswith("pre-norm: 449,152 parameters, context 256, float32;")
    assert columns.split() == "benchmark score 95 % interval chance n no answer few-shot".split()
    assert scores.startswith("BoolQ") and "[" in scores and "50.00" in scores
    assert how.startswith("BoolQ: mean of 1 subject; accuracy by choice_ll; acc_norm ")
    assert "left out: LawBench is not here: expected" in first.stdout
    assert "Table 5 of pangu23" in first.stdout and "published" in first.stdout
    assert "The page: layerlab-evaluation/report.html; results.json" in first.stdout
    assert "BoolQ: pre-norm" in (place / "layerlab-evaluation/report.html").read_text("utf-8")
    assert "pre-norm: BoolQ" in first.stderr
    for noise in ("fatal", "Warning", "pretrained", "it/s"):
        assert noise not in first.stderr
    assert (place / "layerlab-evaluation" / "tables" / "benchmarks.csv").is_file()


@pytest.mark.full
def test_a_second_time_asks_nothing_and_prints_json(place, first):
    words = ("pre-norm", "--suite", "boolq,law", "--data", "data", "--compare", "--json", "-q")
    again = layerlab(place, *words)
    assert again.returncode == 0 and again.stderr == ""
    kept = json.loads((place / "layerlab-evaluation" / "results.json").read_text("utf-8"))
    assert json.loads(again.stdout) == unseal(kept)
    leaves = list((place / "layerlab-evaluation" / "leaves").iterdir())
    assert len(leaves) == 1


@pytest.mark.full
def test_tasks_are_written_for_lm_eval(place):
    found = layerlab(place, "--export-tasks", "tasks")
    assert found.returncode == 0 and found.stderr == ""
    assert found.stdout == f"Tasks of lm-eval: {place / 'tasks'}\n"
    assert (place / "tasks" / "ceval" / "_cot.yaml").is_file()


@pytest.mark.full
def test_benchmarks_are_listed(place):
    found = layerlab(place, "--list", "--data", "data")
    assert found.returncode == 0
    lines = {line.split()[0]: line for line in found.stdout.splitlines() if line.strip()}
    assert " here " in lines["boolq"]
    assert "put it in lawbench/" in lines["lawbench"]
    assert lines["lawbench:"] == "lawbench: github.com/open-compass/LawBench"
    rows = json.loads(layerlab(place, "--list", "--json", "--data", "data").stdout)
    assert [row["benchmark"] for row in rows if row["here"]] == ["boolq"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "layerlab: no model is named; type for example layerlab evaluate pre-norm --suite"),
        (("pre-norm", "--suite", "lav"), "layerlab: there is no suite or benchmark 'lav'; did you"),
        (("pre-norm", "--suite", "law"), "layerlab: nothing can be asked: LawBench is not here"),
        (("pre-norm", "--scoring", "x"), "layerlab: Invalid value for '--scoring'"),
        (("pre-norm", "--against", "no.json"), "layerlab: cannot read no.json: No such file"),
    ],
)
def test_one_clear_line(place, words, said):
    found = layerlab(place, *words)
    assert found.returncode == 2 and found.stdout == ""
    assert found.stderr.startswith(said) and found.stderr.count("\n") == 1
