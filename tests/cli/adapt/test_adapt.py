"""`layerlab adapt` as typed: a plan, a run, the same again, and what is wrong in one line."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from layerlab.recipes.toml import write_toml
from tests.adaptation.lessons import recipe
from tests.support.forked import python

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapt")
    content = recipe(folder, vocabulary=None, embedding=None, sft=None)
    content["name"] = "short"
    (folder / "short.toml").write_text(write_toml(content), encoding="utf-8")
    return folder


def layerlab(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "COLUMNS": "100"}
    return python("-m", "layerlab", "adapt", *words, cwd=place, env=env)


@pytest.fixture(scope="module")
def first(place: Path) -> subprocess.CompletedProcess[str]:
    """The one run that these tests share."""
    return layerlab(place, "short.toml")


def test_all_stages_are_carried_out_and_told_line_by_line(place, first):
    assert first.returncode == 0, first.stderr
    told = first.stderr.splitlines()
    assert told[0] == "base: begins" and any("base: finished in" in line for line in told)
    assert any(line.startswith("pretrain, seed 1: 50%, update 4 of 8") for line in told)
    shown = first.stdout.splitlines()
    assert len(shown) <= 25 and "short, forgetting: " in first.stdout
    assert shown[-1].startswith("The page: ") and shown[-1].endswith("short/report.html")
    assert (place / "layerlab-adaptations" / "short" / "report.html").is_file()


def test_a_second_time_nothing_runs(place, first):
    again = layerlab(place, "short.toml", "--json")
    content = json.loads(again.stdout)
    lines = again.stderr.splitlines()
    assert len(lines) == len(content["stages"])
    assert all(line.endswith("finished before, kept as it is") for line in lines)
    quiet = layerlab(place, "recipe", "short.toml", "--quiet")
    assert quiet.stderr == "" and quiet.stdout == first.stdout


def test_a_plan_says_what_is_finished_and_what_a_setting_leaves_to_do(place, first):
    said = layerlab(place, "short.toml", "--plan", "--json", "--set", "pretrain.tokens=1024")
    content = json.loads(said.stdout)
    left = [one["title"] for one in content["stages"] if not one["finished"]]
    assert left == ["pretrain, seed 1", "evaluate after pretrain"]
    assert content["parameters"] > 1000 and content["seconds_left"] > 0
    shown = layerlab(place, "short.toml", "--plan").stdout
    assert "finished" in shown and "0:00 of training left" in shown


def test_a_plan_has_dashes_where_rows_are_not_here(place):
    shown = layerlab(place, "lora-1b", "--plan").stdout
    (row,) = (one.split() for one in shown.splitlines() if one.startswith("tune "))
    assert row[1:3] == ["-", "-"] and row[4] == "GB" and row[5:7] == ["-", "-"]
    said = "no time can be told without tune, whose texts are not here: of updates"
    assert said in " ".join(shown.split())
    assert "training left" not in shown
    content = json.loads(layerlab(place, "lora-1b", "--plan", "--json").stdout)
    assert content["seconds_left"] is None


def test_files_of_the_user_are_run(place):
    (place / "mine.py").write_text("raise RuntimeError('this file was run')\n", encoding="utf-8")
    said = layerlab(place, "short.toml", "--plan", "--load", "mine.py")
    assert said.returncode == 2 and "this file was run" in said.stderr


def test_a_plan_needs_no_model(place):
    given = ("short.toml", "--set", 'base={model = "nowhere"}', "--set", "evaluate={after=[]}")
    said = layerlab(place, *given, "--plan")
    assert said.returncode == 0 and "base" in said.stdout


def test_options_may_stand_before_the_recipe(place):
    after, before = (
        layerlab(place, *words)
        for words in (("short.toml", "--plan", "--json"), ("--plan", "--json", "short.toml"))
    )
    assert before.returncode == 0, before.stderr
    told = [[one["key"] for one in json.loads(done.stdout)["stages"]] for done in (after, before)]
    assert told[0] == told[1]
    assert "Commands:" in layerlab(place, "--help").stdout


def test_without_a_recipe_those_of_the_package_are_listed(place):
    said = layerlab(place).stdout
    assert "yunshan-mini" in said and "for GPUs" in said


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("none.toml",), "cannot read the recipe 'none.toml': No such file or directory"),
        (("yunshan-mni",), "no recipe 'yunshan-mni'; did you mean yunshan-mini?"),
        (
            ("short.toml", "--set", "pretrain.tokns=3"),
            "a recipe has no setting 'pretrain.tokns'; did you mean 'pretrain.tokens'?",
        ),
        (
            ("short.toml", "--set", "pretrain.tokens=-3"),
            "pretrain.tokens is -3; expected a whole number from 1 to 1e+15: write",
        ),
        (
            ("short.toml", "--set", "data.domain=[]"),
            "needs text of the domain, and there is none; write [data] with domain",
        ),
        (
            ("short.toml", "--set", 'base={model = "nowhere"}'),
            "nowhere",
        ),
        (
            ("short.toml", "--set", 'sft={sources = [{name = "a", path = "none.json"}]}'),
            "there is no file or folder 'none.json', nor is it in the data folder",
        ),
    ],
)
def test_what_is_wrong_is_one_line(place, words, told):
    said = layerlab(place, *words, "--quiet")
    assert said.returncode == 2 and said.stdout == ""
    (line,) = said.stderr.splitlines()
    assert line.startswith("layerlab: ") and told in line
