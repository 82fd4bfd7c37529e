"""Judging needs only the folders of runs: the text may be gone, and the file of the recipe too."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import layerlab
from layerlab import UserError
from layerlab.cli.app import app
from layerlab.experiments.analysis.compare import compare_runs
from layerlab.experiments.analysis.comparison import Comparison
from layerlab.records.parse import seal
from layerlab.report.pages.comparison import save_comparison
from tests.support.refused import refuses
from tests.training.support.drawn import recipe, records, write

LOSSES = {"llama": {1: 3.0, 2: 3.3, 3: 3.1}, "gpt2": {1: 2.99, 2: 3.2895, 3: 3.0905}}
SMALL = """
[model]
width = 16
layers = 1
heads = 2
context = 16

[data]
sources = [{ text = "corpus.txt" }]
vocab_size = 300

[train]
num_train_epochs = 0.02
batch_size = 2

[evaluate]
max_eval_blocks = 2

[compare]
arms = ["llama", "gpt2"]
seeds = [1, 2]
lockstep = true
"""


@pytest.fixture(scope="module")
def trained(cached: Path) -> Iterator[tuple[Path, Comparison]]:
    """A comparison that has been trained on a text, which is gone with all that was made of it."""
    file, text = cached / "small.toml", cached / "corpus.txt"
    file.write_text(SMALL)
    text.write_text("\n".join(f"The cat sat on {n * n} mats." for n in range(800)))
    found = layerlab.compare(file, out=cached, progress=False)
    text.unlink()
    shutil.rmtree(cached / "cache")
    yield cached, found
    assert not (cached / "cache").exists(), "something was read to judge"


def rewrite(file: Path, value: Any, part: str, *names: str, sealed: bool = False) -> None:
    """Put another value where these names lead in a file of JSON."""
    content = place = json.loads(file.read_text())
    for name in (part, *names)[:-1]:
        place = place[name]
    place[(part, *names)[-1]] = value
    file.write_text(json.dumps(seal(content) if sealed else content))


def plain(found: Comparison) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(json.dumps(found.content))
    del content["recipe"]["data"]["sources"]  # where the text lay
    return content


@pytest.mark.full
def test_a_run_without_its_plan_is_named(trained, tmp_path):
    place = tmp_path / "small"
    shutil.copytree(trained[0] / "small", place)
    first, second, third, *_ = sorted((place / "runs").iterdir())
    (first / "run.json").unlink()
    shutil.copy(third / "run.json", second)
    found = layerlab.compare(place, judge=True, progress=False).content
    (said,) = [line for line in found["remarks"] if "run.json" in line]
    assert said == (
        f"without a run.json of their own: {first.name}, {second.name}; the verdicts do not rest "
        "on it: settings and the digest of the text are in manifest.json, under the digest of the "
        "result"
    )
    assert found["runs"] == trained[1].content["runs"]


@pytest.mark.full
def test_where_the_text_is_gone_the_verdicts_are_those_that_were(trained, monkeypatch):
    folder, first = trained
    place = folder / "small"
    for given in (folder / "small.toml", place, place / "runs"):
        (place / "report.html").unlink(missing_ok=True)
        again = layerlab.compare(given, out=folder, judge=True, progress=False)
        assert plain(again) == plain(first)
        assert (place / "report.html").is_file()
    assert again.content["remarks"] and len(again.content["runs"]) == 4
    # From the folder of the recipe, the text has another path.
    monkeypatch.chdir(folder)
    assert plain(layerlab.compare("small.toml", out=".", judge=True)) == plain(first)


@pytest.mark.full
def test_the_command_judges_a_folder_alone_and_settings_still_count(trained, tmp_path):
    shutil.copytree(trained[0] / "small", tmp_path / "elsewhere")
    words = ["compare", str(tmp_path / "elsewhere"), "--judge", "-q"]
    told = CliRunner().invoke(app, [*words, "--json"])
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["rows"] == trained[1].content["rows"]
    told = CliRunner().invoke(app, [*words, "--set", "compare.seeds=[1]", "--json"])
    found = json.loads(told.stdout)
    assert found["seeds"] == [1] and len(found["runs"]) == 2
    assert sum("seed 2 is none of those fixed" in one for one in found["remarks"]) == 2


def saved(folder: Path) -> Path:
    """A comparison of drawn runs."""
    given = recipe()
    found = records(given, LOSSES)
    for one in found:
        write(folder / "drawn" / "runs", one)
    save_comparison(compare_runs(given, found).content, folder / "drawn")
    return folder / "drawn"


@pytest.mark.full
def test_runs_of_another_recipe_beside_are_named_and_change_nothing(tmp_path):
    place = saved(tmp_path)
    first = layerlab.compare(place, judge=True)
    (longer,) = [
        one
        for one in records(recipe(train={"max_steps": 40}), LOSSES)
        if one.arm == "gpt2" and one.seed == 1
    ]
    write(place / "runs", longer)
    again = layerlab.compare(place, judge=True)
    assert again.rows == first.rows
    assert again.content["remarks"] == [
        *first.content["remarks"],
        f"left out, because train.max_steps is 40 there and 20 in the recipe: {longer.name}",
    ]


@pytest.mark.full
def test_notes_of_texts_are_those_of_the_runs(tmp_path):
    place = saved(tmp_path)
    for file in place.glob("runs/*/manifest.json"):
        rewrite(file, ["brown is not here"], "data", "notes")
    assert layerlab.compare(place, judge=True).content["remarks"][-1] == "brown is not here"


def test_what_is_not_believed_is_named_and_left_out(tmp_path):
    place = saved(tmp_path)
    assert layerlab.compare(place, judge=True).failed == []
    (one,) = place.glob("runs/gpt2-s1*/result.json")
    one.write_text("{}")
    (other,) = place.glob("runs/gpt2-s2*/events.jsonl")
    other.write_text(other.read_text() + "garbage")
    done = CliRunner().invoke(app, ["compare", str(place), "--judge"])
    found = json.loads((place / "comparison.json").read_text())
    assert done.exit_code == 1 and "gpt2" in done.stdout
    first, second = found["failed"]
    assert first.startswith(f"left out: {one} is not believed: it has no schema; delete ")
    assert second.startswith(f"left out: {other.with_name('result.json')} is not believed: line 7 ")
    assert {first, second} <= set(found["remarks"])
    kept = {run["run"] for run in found["runs"]}
    assert {one.parent.name, other.parent.name}.isdisjoint(kept) and len(kept) == 4
    assert "diverged" not in {row["verdict"] for row in found["rows"]}


def emptied(place: Path) -> Path:
    shutil.rmtree(place / "runs")
    return place


def without(place: Path) -> Path:
    (place / "comparison.json").unlink()
    return place


def damaged(place: Path) -> Path:
    (place / "comparison.json").write_text("[1")
    return place


def mixed(place: Path) -> Path:
    rewrite(next(place.glob("runs/gpt2-s2*/manifest.json")), "d2", "data", "digest")
    return place


def strange(place: Path) -> Path:
    for file in place.glob("runs/*/manifest.json"):
        rewrite(file, 7, "recipe", "train", "updates")  # its name in 0.1
    return place


def unnamed(place: Path) -> Path:
    for file in (*place.glob("runs/*/manifest.json"), *place.glob("runs/*/result.json")):
        rewrite(file, "other", "arm")
    return place


def another(place: Path) -> Path:
    rewrite(place / "comparison.json", None, "recipe", "compare", sealed=True)
    return place


def edited(place: Path) -> Path:
    """What counts as a difference is another by hand."""
    rewrite(place / "comparison.json", 0.5, "recipe", "compare", "confidence")
    return place


@pytest.mark.full
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (emptied, r"nothing has run yet in .*drawn; type layerlab compare without --judge"),
        (
            without,
            r"drawn is no folder of a comparison: it has no comparison\.json, which .*"
            r"type layerlab compare RECIPE --out .* --judge",
        ),
        (damaged, r"cannot read the recipe in .*comparison\.json: .*; name the recipe: type"),
        (mixed, r"gpt2-s1\S* and gpt2-s2\S* were made on two texts, and both lie here; leave the"),
        (
            strange,
            r"no run in .* is of the recipe 'drawn': left out, because train\.max_steps is 7 ",
        ),
        (unnamed, r"no run in .* is of the recipe 'drawn': .* the recipe has no arm 'other'"),
        (edited, r"cannot read the recipe in .*comparison\.json: it is not what was written"),
        (another, r"the recipe 'drawn' has no compare section; type layerlab train in place of"),
    ],
)
def test_what_cannot_be_judged_is_one_line(tmp_path, change, said):
    refuses(said, layerlab.compare, change(saved(tmp_path)), judge=True)


@pytest.mark.full
def test_a_folder_without_judge_is_no_recipe(tmp_path):
    with pytest.raises(
        UserError, match=r"cannot read the recipe .*: Is a directory; expected a TOML file"
    ):
        layerlab.compare(saved(tmp_path))
    refuses("no page in 'fr'", layerlab.compare, "smoke", judge=True, lang="fr")
