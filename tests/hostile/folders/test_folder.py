"""Folders of other people that are written into: links in them, files beside, numbers by hand."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import layerlab
from layerlab import UserError
from layerlab.api.train import compare_task
from layerlab.builtin import path
from layerlab.experiments.analysis.compare import compare_runs
from layerlab.experiments.session import PreparedRecipe
from layerlab.records.parse import read_json, seal, unseal
from layerlab.report.pages.comparison import save_comparison
from layerlab.studies.engine.runner import study
from layerlab.system.files import check_links
from tests.hostile.attack import typed
from tests.training.support.drawn import recipe, records, write

QUIET: dict[str, Any] = {"progress": False, "threads": 1}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A comparison with its runs, and a file of the user's own beside it."""
    given = recipe()
    found = records(given, {"llama": {1: 3.0, 2: 3.3}, "gpt2": {1: 2.9, 2: 3.2}})
    folder = tmp_path / given.name
    for one in found:
        write(folder / "runs", one)
    save_comparison(compare_runs(given, found).content, folder)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("precious")
    return folder


def kept(place: Path) -> list[str]:
    assert (place.parent / "mine" / "thesis.tex").read_text() == "precious"
    return [one.name for one in (place.parent / "mine").iterdir()]


@pytest.mark.parametrize("name", ["report.html", "tables", "runs/link", "pictures"])
def test_nothing_is_written_through_a_link(place, name):
    link = place / name
    shutil.rmtree(link, ignore_errors=True)
    link.unlink(missing_ok=True)
    inside = "mine/thesis.tex" if "." in name else "mine"
    link.symlink_to(place.parent / inside)
    typed("compare", str(place), "--judge", "-q").refused(f"{name} is a link to")
    assert kept(place) == ["thesis.tex"]


def test_a_folder_may_itself_be_reached_by_a_link(place):
    other = place.parent / "elsewhere"
    other.symlink_to(place)
    check_links(other)
    assert typed("compare", str(other), "--judge", "-q").code == 0


@pytest.mark.parametrize("command", ["train", "evaluate", "study", "inspect"])
def test_every_folder_of_results_is_looked_through(command, tmp_path):
    out = tmp_path / "out"
    own = out / ("a/run" if command == "train" else "tables")
    own.mkdir(parents=True)
    (own / "link").symlink_to(tmp_path)
    (tmp_path / "a.toml").write_text("train.max_steps = 2")
    typed(
        *{
            "train": ("train", str(tmp_path / "a.toml")),
            "evaluate": ("evaluate", "llama", "--suite", "boolq"),
            "study": ("study", "rounding-input", "--draws", "8"),
            "inspect": ("inspect",),
        }[command],
        *("--out", str(out), "-q"),
    ).refused("is a link to")


@pytest.mark.full
@pytest.mark.parametrize("forged", ["word", "digest"])
def test_a_study_that_was_changed_is_not_believed(forged, tmp_path):
    out = tmp_path / "out"
    first = study("rounding-input", draws=8, out=out, **QUIET)
    content = json.loads((out / "study.json").read_text())
    for one in content["verdicts"]:
        one["said"] = "FORGED"
    if forged == "digest":  # as one of 0.1 has none: it is computed again
        del content["digest"]
        (out / "study.json").write_text(json.dumps(content))
        assert study("rounding-input", draws=8, out=out, **QUIET).verdicts == first.verdicts
        return
    (out / "study.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"was changed since it was written.*--restart"):
        study("rounding-input", draws=8, out=out, **QUIET)
    again = study("rounding-input", draws=8, out=out, restart=True, **QUIET)
    assert again.verdicts == first.verdicts


@pytest.mark.parametrize(
    "change",
    [{"runs": [None]}, {"runs": [{}]}, {"looked": "x"}, {"rows": [3]}, {"seeds": None}],
)
def test_an_earlier_judging_of_another_kind_is_one_line(place, change):
    file = place / "comparison.json"
    file.write_text(json.dumps(seal({**unseal(read_json(file)), **change})))
    typed("compare", str(place), "--judge", "-q").refused("is no comparison that was written here")


def test_what_is_no_file_beside_weights_is_refused(tmp_path):
    shutil.copytree(path("llama"), tmp_path / "m")
    os.mkfifo(tmp_path / "m" / "zz.safetensors")
    typed("inspect", str(tmp_path / "m"), "-q", "--out", str(tmp_path / "o")).refused("is a pipe")


@pytest.mark.parametrize("name", ["attn_implementation", "_attn_implementation"])
def test_code_on_the_hub_is_no_implementation(name, tmp_path):
    shutil.copytree(path("llama"), tmp_path / "m")
    file = tmp_path / "m" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), name: "evil/kernel"}))
    said = f"{name} is 'evil/kernel' in config.json, which is code on the Hub"
    typed("inspect", str(tmp_path / "m"), "-q", "--out", str(tmp_path / "o")).refused(said)


def test_a_quantized_model_is_no_larger_than_its_weights_can_be(tmp_path):
    shutil.copytree(path("llama"), tmp_path / "m")
    file = tmp_path / "m" / "config.json"
    change = {"quantization_config": {"quant_method": "fp8"}, "vocab_size": 10**9}
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    words = ("inspect", str(tmp_path / "m"), "-q", "--out", str(tmp_path / "o"))
    typed(*words).refused("parameters, and the weights beside it hold")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_file_that_is_read_whole_has_a_size(name, tmp_path):
    shutil.copytree(path("llama"), tmp_path / "m")
    with (tmp_path / "m" / name).open("r+b") as file:
        file.truncate(300 << 20)
    said = f"{name} has 300 MiB; expected at most 256 MiB"
    typed("inspect", str(tmp_path / "m"), "-q", "--out", str(tmp_path / "o")).refused(said)


def test_a_recipe_and_a_file_of_code_have_a_size(tmp_path):
    for name, words in (("r.toml", ("train",)), ("own.py", ("variants", "--load"))):
        with (tmp_path / name).open("wb") as file:
            file.truncate(300 << 20)
        typed(*words, str(tmp_path / name)).refused("has 300 MiB; expected at most 256 MiB")


def test_only_what_was_written_is_replaced(tmp_path):
    rows = tmp_path / "rows.jsonl"
    text = "A row of text that is long enough to matter for all of us who read it here."
    rows.write_text(json.dumps({"text": text}) + "\n")
    words = ("adapt", "clean", str(rows), "--out", str(tmp_path / "out"))
    assert typed(*words).code == typed(*words).code == 0
    (tmp_path / "out" / "notes.txt").write_text("mine")
    typed(*words).refused("holds something other than a cleaned text")
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("held", ["tables", "page", "results", "inspection"])
def test_an_evaluation_replaces_nothing_but_its_own(held, tmp_path):
    names = {
        "tables": [f"tables/{kind}.csv" for kind in ("sections", "tasks", "compared", "groups")],
        "page": ["report.html"],
        "results": ["results.json"],
        "inspection": ["report.html", "report.json"],
    }[held]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    words = ("evaluate", "llama", "--suite", "boolq", "--out", str(tmp_path), "-q")
    typed(*words).refused("holds something other than an evaluation")
    assert {(tmp_path / name).read_text() for name in names} == {"mine"}


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("name", "held"),
    [
        ("report.html", "mine"),
        ("comparison.json", "mine"),
        ("comparison.json", '{"baseline": "llama", "notes": []}'),
        ("tables/rows.csv", "mine"),
        ("pictures/forest.svg", "mine"),
    ],
)
@pytest.mark.parametrize("judged", [True, False])
def test_a_comparison_replaces_nothing_but_its_own(name, held, judged, place, monkeypatch):
    for one in ("comparison.json", "report.html", "tables", "pictures"):
        (shutil.rmtree if (place / one).is_dir() else os.unlink)(place / one)
    (place / name).parent.mkdir(exist_ok=True)
    (place / name).write_text(held)
    monkeypatch.setattr("layerlab.api.train.run", lambda *args, **kwargs: pytest.fail("it ran"))
    given = recipe()
    with pytest.raises(UserError) as caught:
        if judged:
            layerlab.compare(given, out=place.parent, judge=True, progress=False)
        else:
            compare_task(PreparedRecipe(recipe=given, runs=(), out=place), progress=False)
    assert str(caught.value) == (
        f"{place} holds something other than a comparison: {name.partition('/')[0]}; move it away, "
        f"or name another folder with {'out=' if judged else '--out'}"
    )
    assert (place / name).read_text() == held


def test_a_page_of_the_users_beside_a_comparison_stays(place):
    (place / "report.html").write_text("mine")
    with pytest.raises(UserError, match=r"something other than a comparison: report.html; move"):
        layerlab.compare(recipe(), out=place.parent, judge=True, progress=False)
    assert (place / "report.html").read_text() == "mine"


@pytest.mark.full
def test_a_comparison_is_known_wherever_writing_is_cut_off(place, monkeypatch):
    for one in ("comparison.json", "report.html", "tables", "pictures"):
        (shutil.rmtree if (place / one).is_dir() else os.unlink)(place / one)
    written, replace = list[Path](), Path.replace

    def stop(partial: Path, target: Path) -> Path:
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(target)
        return replace(partial, target)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "replace", stop)
        layerlab.compare(recipe(), out=place.parent, judge=True, progress=False)
    assert not (place / "report.html").exists() and (place / "tables").is_dir()
    layerlab.compare(recipe(), out=place.parent, judge=True, progress=False)
    assert (place / "report.html").is_file()


@pytest.mark.parametrize("beside", [False, True])
def test_an_error_txt_of_the_users_own_is_no_study(beside, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    if beside:
        study("rounding-input", draws=8, out=out, **QUIET)
    held = "Traceback (most recent call last):\n  my own notes on it"
    (out / "error.txt").write_text(held)
    words = ("study", "rounding-input", "--draws", "9", "--out", str(out), "-q")
    typed(*words).refused("holds something other than a study; name a new or an empty folder")
    assert (out / "error.txt").read_text() == held
