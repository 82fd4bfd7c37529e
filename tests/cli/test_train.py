"""`layerlab train` and `compare` as typed: exit codes, words, and what a second time does."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from layerlab import UserError
from layerlab.cli.train import read_settings
from layerlab.recipes.training import list_packaged
from tests.support.forked import python
from tests.support.refused import refuses

RECIPE = """
[model]
width = 16
layers = 1
heads = 2
context = 16

[data]
vocab_size = 300

[train]
max_steps = 2
batch_size = 2

[evaluate]
max_eval_blocks = 2
"""
ARMS = 'compare.arms=["llama", "gpt2"]'


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("train")
    (folder / "small.toml").write_text(RECIPE, encoding="utf-8")
    return folder


def layerlab(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "COLUMNS": "100", "LAYERLAB_CACHE": str(place / "cache")}
    return python("-m", "layerlab", *words, cwd=place, env=env)


@pytest.fixture(scope="module")
def first(place: Path) -> subprocess.CompletedProcess[str]:
    """The one run that these tests share."""
    return layerlab(place, "train", "small.toml")


@pytest.fixture(scope="module")
def result(place: Path, first: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert first.returncode == 0, first.stderr
    (file,) = place.glob("layerlab-runs/small/runs/*/result.json")
    found: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return found


def test_a_run_is_told_with_its_model_and_its_page(place, first, result):
    head, model, page = first.stdout.splitlines()
    assert head.startswith(f"{result['run']}: {result['nats']:.4f} nats per token")
    assert (place / model.partition(": ")[2] / "config.json").is_file()
    assert (place / page.partition(": ")[2]).is_file()
    # No terminal: ten parts of a run of two updates are two lines.
    assert "50 % (1 of 2)" in first.stderr and "\x1b" not in first.stderr + first.stdout


@pytest.mark.full
def test_the_same_again_runs_nothing_and_says_the_same(place, first, result):
    again = layerlab(place, "train", "small.toml", "--quiet", "--json")
    assert again.returncode == 0 and again.stderr == ""
    assert json.loads(again.stdout) == result


@pytest.mark.full
def test_the_metrics_may_be_those_of_run_clm(place, first):
    done = layerlab(place, "train", "small.toml", "--metrics", "run-clm", "-q")
    assert done.returncode == 0, done.stderr
    assert "***** train metrics *****" in done.stdout and "perplexity" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("train", "small.toml", "--set", ARMS, "--plan"),
            "the recipe 'small' compares several arms; type layerlab compare in place of",
        ),
        (
            ("compare", "small.toml", "--plan"),
            "the recipe 'small' has no compare section; type layerlab train in place of",
        ),
        (
            ("train", "small.toml", "--set", ARMS),
            "the recipe 'small' compares several arms; type layerlab compare in place of",
        ),
        (
            ("compare", "small.toml"),
            "the recipe 'small' has no compare section; type layerlab train in place of",
        ),
        (
            ("compare", "small.toml", "--set", ARMS, "--judge", "--out", "none"),
            "nothing has run yet in none/small; type layerlab compare without --judge",
        ),
        (
            ("train", "small.toml", "--set", "train.batch_size=0"),
            "train.batch_size is 0; expected a whole number from 1 to 1e+15: write "
            "train.batch_size = 16",
        ),
        (
            ("train", "small.toml", "--set", "train.batch_size"),
            "cannot read the setting 'train.batch_size'; expected PATH=VALUE: type for example",
        ),
        (
            ("train", "small.toml", "--metrics", "run-clm", "--json"),
            "--metrics run-clm prints a block of text, and --json JSON; expected one of the two",
        ),
        (
            ("compare", "small.toml", "--set", ARMS, "--plan", "--fold"),
            "--plan writes nothing, and --fold the finished runs into two files; expected one of",
        ),
        (("train", "smal.toml"), "cannot read the recipe 'smal.toml': No such file"),
    ],
)
def test_what_a_user_can_mend_is_one_line(place, words, said):
    done = layerlab(place, *words, "-q")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith(f"layerlab: {said}"), done.stderr
    assert done.stderr.count("\n") == 1
    assert not (place / "none").exists()


@pytest.mark.full
def test_a_plan_runs_nothing(place):
    done = layerlab(place, "compare", "small.toml", "--set", ARMS, "--plan", "--out", "planned")
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "gpt2 against llama: norm: rms -> layer; attention: bias none -> all;" in said
    assert "no verdict can say which of them counts: gpt2 (norm," in said
    assert not (place / "planned").exists()


def test_without_a_recipe_there_is_a_list_with_the_smallest_first(place):
    lists = {}
    for command in ("train", "compare"):
        done = layerlab(place, command)
        table = done.stdout.partition("A recipe of one run")[0].splitlines()[1:]
        lines = [line for line in table if line[0] != " "]
        assert done.returncode == 0 and lines[0].startswith("smoke ") and "one run" in lines[0]
        lists[command] = [line.split()[0] for line in lines]
    assert sorted(lists["compare"]) == list_packaged()
    assert "pangu-pretrain" in lists["train"] and "sizes" not in lists["train"]


def test_settings_are_toml_where_they_can_be():
    found = read_settings(["a.b=3", "c = [1, 2]", "d=plain words", "e=1e-3", "f=true"])
    assert found == {"a.b": 3, "c": [1, 2], "d": "plain words", "e": 0.001, "f": True}
    for word in ("train.max_steps", "=3", "train.max_steps= "):
        refuses("expected PATH=VALUE", read_settings, [word])
    with pytest.raises(UserError, match=r"--set 'train\.max_steps' is given twice"):
        read_settings(["train.max_steps=7", "train.max_steps=9"])


@pytest.mark.full
def test_a_ladder_is_planned_by_size_and_one_size_is_refused(place):
    words = ("compare", "small.toml", "--set", ARMS, "--set", "compare.seeds=[1, 2, 3]")
    words += ("--set", "ladder.ratio=2", "--set", "model.width=32", "--set", "model.layers=2")
    done = layerlab(place, *words, "--ladder", "2", "--plan", "--json", "--out", "planned")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    small, large = found["sizes"]
    assert small["parameters"] < large["parameters"] and small["width"] < 32 == large["width"]
    assert found["runs"] == small["runs"] + large["runs"] == 12
    assert found["seconds"] == pytest.approx(small["seconds"] + large["seconds"])
    assert found["memory"] == max(small["memory"], large["memory"])
    assert [arm["arm"] for arm in small["arms"]] == ["llama", "gpt2"]
    table = layerlab(place, *words, "--ladder", "2", "--plan", "--out", "planned")
    assert "parameters (width 32, layers 2)" in table.stdout
    assert "all sizes: 12 runs, " in table.stdout
    refused = layerlab(place, *words, "--ladder", "1", "--plan")
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1
    assert "--ladder is 1; expected a number of sizes, two or more" in refused.stderr
