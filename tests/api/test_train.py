"""Training as a function: what is said where there is nothing to train, or nothing to keep."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from layerlab import UserError, adapt, compare, estimate_runs, train
from layerlab.api.train import compare_task, judge_task, prepare, train_task
from layerlab.api.training_result import TrainingResult
from layerlab.corpus.corpus import prepare as prepare_corpus
from layerlab.experiments.analysis.comparison import Comparison
from layerlab.recipes.training import make_recipe
from layerlab.records.parquet.folded_runs import CURVES, MANIFESTS
from layerlab.records.run import RunRecord, read_record
from tests.support import mounted
from tests.support.refused import refuses

SMALL = {
    "name": "small",
    "model": {"width": 16, "layers": 1, "heads": 2, "context": 16},
    "data": {"vocab_size": 300},
    "train": {"max_steps": 2, "batch_size": 2},
    "evaluate": {"max_eval_blocks": 2},
}
LOST = {
    **SMALL,
    "name": "lost",
    "train": {"max_steps": 6, "batch_size": 2, "learning_rate": 1e30, "max_grad_norm": 0.0},
}
ONCE = {"compare.lockstep": True, "compare.seeds": [1]}
TWO = {**SMALL, "compare": {"arms": ["llama", "gpt2"]}}


@pytest.fixture(scope="module")
def ended(cached: Path) -> TrainingResult:
    """A run that is finished; the text that it read is kept for all tests here."""
    return train(SMALL, out=cached, progress=False)


@pytest.mark.full
def test_a_run_gives_its_result_its_model_its_curves_and_a_page(ended):
    assert ended.folder.parent.name == "runs" and ended.page.is_file()
    assert ended.result["updates"] == 2 and ended.model().config.hidden_size == 16
    assert ended.to_dict() == json.loads((ended.folder / "result.json").read_text("utf-8"))
    nested = {name: value for name, value in ended.result.items() if isinstance(value, dict | list)}
    assert nested and all(ended.to_dict()[name] is not value for name, value in nested.items())
    assert ended.frame()["update"].tolist() == [1, 2]
    assert ended.frame("evaluation")["nats"].iloc[-1] == ended.result["nats"]
    said = ended.summary().splitlines()
    assert said[0].startswith(f"{ended.result['run']}: {ended.result['nats']:.4f} nats per token, ")
    assert said[1:] == [f"The model: {ended.folder / 'model'}"]
    shared = replace(ended, result={**ended.result, "tokens_per_second": None})
    assert shared.summary().splitlines()[0].endswith(f", {ended.result['tokens']:,} tokens")


@pytest.mark.full
def test_a_plan_of_one_run_and_of_arms_runs_nothing(ended, tmp_path):
    one = estimate_runs(SMALL, out=tmp_path, progress=False)
    arms = estimate_runs(SMALL, out=tmp_path, progress=False, arms=["llama", "gpt2"])
    assert one.sizes[0].estimate.runs == 1 and one.to_dict()["looks"] == []
    assert [side.arm for side in arms.sizes[0].estimate.sides] == ["llama", "gpt2"]
    assert any(line.startswith("gpt2 against llama") for line in arms.sizes[0].remarks())
    assert not any(tmp_path.iterdir())
    assert one.task == estimate_runs(SMALL, out=tmp_path, progress=False).task != arms.task
    assert one == one != arms


@pytest.mark.full
def test_a_plan_says_what_is_left_of_it(ended):
    home, seed = ended.folder.parents[2], {"train.seed": 3}
    done = estimate_runs(SMALL, out=home, progress=False)
    assert done.to_dict()["runs_left"] == done.to_dict()["seconds_left"] == 0
    assert "every run is finished and kept: nothing is left to run" in done.remarks()
    other = estimate_runs(SMALL, out=home, progress=False, settings=seed)
    assert other.left == (1, other.sizes[0].estimate.sides[0].seconds)
    assert not any("finished" in line for line in other.remarks())


@pytest.mark.full
def test_a_run_leaves_the_random_numbers_of_its_caller_as_they_were(tmp_path):
    before = torch.get_rng_state()
    train(SMALL, out=tmp_path, progress=False)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_kind_of_event_that_there_is_not_is_named(ended):
    assert ended.frame("alarm").empty
    refuses("no events of the kind 'nonsense'; expected one of train, ", ended.frame, "nonsense")


def test_a_run_that_keeps_no_model_does_not_name_one(ended):
    settings = {"run.save_model": False, "train.seed": 1}
    run = train(SMALL, out=ended.folder.parents[2], progress=False, settings=settings)
    assert "The model" not in run.summary()
    refuses(r"kept no model; write run\.save_model = true, delete it", run.model)


def test_a_finished_run_is_kept(ended):
    before = (ended.folder / "result.json").stat().st_mtime_ns
    again = train(SMALL, out=ended.folder.parents[2], progress=False)
    assert again.result == ended.result and again.folder == ended.folder
    assert (ended.folder / "result.json").stat().st_mtime_ns == before


def test_a_comparison_is_not_trained_and_a_single_run_not_compared(ended, tmp_path):
    with pytest.raises(UserError, match="'small' compares several arms; type layerlab compare in"):
        train(TWO, out=tmp_path, progress=False)
    with pytest.raises(UserError, match="'small' has no compare section; type layerlab train in"):
        compare(SMALL, out=tmp_path, progress=False)
    assert not list(tmp_path.iterdir())


def test_arms_that_could_not_be_compared_are_refused_before_anything_runs(ended, tmp_path):
    half = {"name": "half", "variant": "llama", "set": {"train.batch_size": 1}}
    unequal = {**SMALL, "compare": {"arms": ["llama", half]}}
    for begun in (compare, prepare):
        with pytest.raises(UserError, match=r"train\.batch_size is 2 in llama.* and 1 in half-s1-"):
            begun(unequal, out=tmp_path, progress=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.full
def test_a_seed_that_is_added_after_a_look_is_told_however_often_it_is_judged(ended, tmp_path):
    section = {"arms": ["llama", "gpt2"], "lockstep": True, "seeds": [1]}
    once = {**SMALL, "compare": section}
    more = {**SMALL, "compare": {**section, "seeds": [1, 2]}}
    first = compare(once, out=tmp_path, progress=False)
    assert not any("after a look" in one for one in first.content["remarks"])
    said = "seeds added after a look: 2; a table of seeds 1 had been shown before"
    second = compare(more, out=tmp_path, progress=False)
    again = judge_task(prepare(more, tmp_path, progress=False))
    for found in (second, again):
        assert sum(one.startswith(said) for one in found.content["remarks"]) == 1


@pytest.mark.full
def test_a_comparison_that_was_cut_off_goes_on_elsewhere_from_two_files(ended, tmp_path):
    here, there = (tmp_path / place / "small" for place in ("here", "there"))
    given = {**SMALL, "compare": {"arms": ["llama", "gpt2"], "lockstep": True, "seeds": [1, 2]}}
    whole = compare(given, out=here.parent, progress=False)
    assert not (here / MANIFESTS).exists()
    cut = next((here / "runs").glob("gpt2-s2-*"))
    for file in ("result.json", "events.jsonl"):
        (cut / file).unlink()  # what is left of a run that has begun
    from layerlab.cli.app import app

    done = CliRunner().invoke(app, ["compare", str(here), "--judge", "--fold"])
    said = f"The finished runs: {here / MANIFESTS} and {here / CURVES} "
    said += f"What was shown of them: {here / 'comparison.json'}"
    assert done.exit_code == 0 and said in done.output.replace("\n", " ")
    there.mkdir(parents=True)
    for name in (MANIFESTS, CURVES):
        shutil.copy(here / name, there / name)
    waiting = compare(given, out=there.parent, judge=True, progress=False)
    assert len(waiting.content["runs"]) == 3 and waiting.rows[1]["missing"] == [2]
    kept = {file: file.stat().st_mtime_ns for file in there.glob("runs/*/result.json")}
    again = compare(given, out=there.parent, fold=True, progress=False)
    assert again.rows[1]["difference"] == whole.rows[1]["difference"]
    assert all(file.stat().st_mtime_ns == time for file, time in kept.items()) and len(kept) == 3
    assert len(pd.read_parquet(there / MANIFESTS)) == 4


@pytest.mark.full
def test_a_run_that_diverged_is_not_tried_again_and_says_where_it_is(tmp_path, cache):
    said = []
    for _ in range(2):
        told = refuses(r"lower train\.learning_rate", train, LOST, out=tmp_path, progress=False)
        said.append(told)
    (run,) = (tmp_path / "lost" / "runs").iterdir()
    assert said[0] == said[1] and said[0].endswith(f"; the run is kept in {run}")
    assert f"; its page: {run / 'report.html'}" in said[0]
    assert "diverged" in (run / "report.html").read_text(encoding="utf-8")


def test_a_page_without_room_takes_no_result_with_it(ended, tmp_path):
    place, told = tmp_path / "disk", list[TrainingResult]()
    with mounted.disk(place, "600k"):
        task = prepare(SMALL, place, progress=False)
        with pytest.raises(UserError, match=r"cannot write .*report\.html: no space is left"):
            train_task(task, progress=False, tell=told.append)
        assert [one.result["updates"] for one in told] == [2]
        assert not told[0].page.exists() and not list(told[0].folder.glob(".*"))
        mounted.grown(place, "40m")
        assert train_task(task, progress=False).page.is_file()


@pytest.mark.full
def test_a_report_without_room_takes_no_verdict_with_it(ended, tmp_path):
    place, told = tmp_path / "disk", list[Comparison]()
    lockstep = {**SMALL, "compare": {**TWO["compare"], "seeds": [1], "lockstep": True}}
    with mounted.disk(place, "600k"):
        task = prepare(lockstep, place, {"run.save_model": False}, progress=False)
        with pytest.raises(UserError, match=r"cannot write .*no space is left on the device; make"):
            compare_task(task, progress=False, tell=told.append)
        assert [row["arm"] for row in told[0].rows] == ["llama", "gpt2"]
        assert not (task.out / "report.html").exists() and not list(task.out.glob(".*"))
        mounted.grown(place, "40m")
        assert judge_task(task).rows == told[0].rows and (task.out / "report.html").is_file()


def records(folder: Path) -> dict[str, RunRecord]:
    found = [read_record(one) for one in folder.iterdir()]
    return {one.arm: one for one in found if one is not None}


@pytest.mark.full
def test_an_arm_learns_from_text_and_words_of_its_own_and_is_judged_on_the_text_of_all(
    tmp_path, cache
):
    for name, line in (
        ("base", "The cat sat on the mat. {}\n"),
        ("own", "Apples fell; {} fell.\n"),
    ):
        text = "\n".join(line.format(number * number) for number in range(600))
        (tmp_path / f"{name}.txt").write_text(text)
    base, own = ([{"text": str(tmp_path / f"{name}.txt")}] for name in ("base", "own"))
    arms = [
        "llama",
        {"name": "own", "variant": "llama", "set": {"data.sources": own, "data.vocab_size": 9000}},
    ]
    recipe = {
        **SMALL,
        "data": {"sources": base, "vocab_size": 300},
        "evaluate": {},
        "compare": {
            "arms": arms,
            "seeds": [1],
            "allowed_differences": ["data.sources", "data.vocab_size"],
        },
    }
    found = compare(recipe, out=tmp_path, progress=False)
    assert not found.failed and found.content["metric"] == "bits_per_byte"
    runs = records(tmp_path / "small" / "runs")
    for run in runs.values():
        data = make_recipe(run.manifest["recipe"]).data
        assert run.manifest["data"]["digest"] == prepare_corpus(data).digest, run.name
        assert run.value("bits_per_byte") is not None
    assert len({run.manifest["data"]["digest"] for run in runs.values()}) == 2
    held = {run.manifest["data"]["validation_bytes"] for run in runs.values()}
    assert held == {prepare_corpus(make_recipe(recipe).data).validation_bytes}
    vocab = {name: run.manifest["recipe"]["model"]["vocab"] for name, run in runs.items()}
    assert vocab["llama"] == 300 < vocab["own"] < 9000
    assert runs["own"].count("embedding") == vocab["own"] * SMALL["model"]["width"]
    told = [one for one in found.content["remarks"] if "not the 9000 of data.vocab_size" in one]
    assert len(told) == 1


def test_lockstep_is_refused_at_the_plan(ended):
    with pytest.raises(UserError, match=r'lockstep .*run\.executor is "slurm"'):
        settings = {"compare.lockstep": True, "run.executor": "slurm"}
        prepare(TWO, ended.folder, settings, progress=False)


@pytest.mark.full
def test_what_is_read_in_place_of_a_text_is_said(ended, tmp_path, monkeypatch):
    monkeypatch.setenv("LAYERLAB_DATA", str(tmp_path))
    settings = {"data.sources": [{"text": "brown"}], "data.vocab_size": 299}
    run = train(SMALL, out=tmp_path, progress=False, settings=settings)
    assert run.summary().count("brown is not here") == 1
    (note,) = run.notes
    found = compare(TWO, out=tmp_path, progress=False, settings={**settings, **ONCE})
    assert [one for one in found.content["remarks"] if "brown" in one] == [note]


@pytest.mark.full
def test_a_plan_says_what_is_read_in_place_of_a_text(ended, tmp_path, monkeypatch):
    from layerlab.cli.app import app

    monkeypatch.setenv("LAYERLAB_DATA", str(tmp_path))
    words = ["train", "smoke", "--plan", "-q", "--set", 'data.sources=[{text="brown"}]']
    told = CliRunner().invoke(app, [*words, "--set", "data.vocab_size=300"])
    assert told.exit_code == 0 and told.output.count("brown is not here") == 1
    told = CliRunner().invoke(app, [*words, "--set", "data.vocab_size=300", "--json"])
    assert "brown is not here" in json.loads(told.stdout)["notes"][0]


def test_a_file_in_place_of_the_folder_is_told_before_a_text_is_read(tmp_path):
    (tmp_path / "file").write_text("mine")
    said = "file is a file; give out= a folder for the results"
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        refuses(said, train, "smoke", out=out, progress=False)
        refuses(said, compare, "smoke", arms=["llama", "gpt2"], out=out, progress=False)
        refuses(said, adapt, "yunshan-mini", out=out, progress=False)
