"""A ladder that is really trained: resumed, judged from its folder, and one with plain runs."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import layerlab
from layerlab import UserError
from layerlab.experiments.analysis.comparison import Comparison

pytestmark = pytest.mark.full

RECIPE: dict[str, Any] = {
    "name": "small",
    "model": {"width": 32, "layers": 2, "heads": 4, "context": 16},
    "data": {"vocab_size": 300},
    "train": {"max_steps": 4, "batch_size": 2},
    "evaluate": {"max_eval_blocks": 4},
    "compare": {"arms": ["llama", "relu2"], "seeds": [1, 2, 3], "lockstep": True},
    "ladder": {"count": 3, "ratio": 1.6, "beyond": ["100k"]},
    "run": {"save_model": False},
}


@pytest.fixture(scope="module")
def climbed(cached: Path) -> tuple[Path, Comparison]:
    text = cached / "corpus.txt"
    text.write_text("\n".join(f"The cat sat on {n * n} mats." for n in range(800)))
    # As many sizes as the argument says, which is that of the recipe in the tests below.
    recipe = given(cached, ladder={**RECIPE["ladder"], "count": 2})
    return cached, layerlab.compare(recipe, out=cached, ladder=3, progress=False)


def given(folder: Path, **changed: Any) -> dict[str, Any]:
    data = {**RECIPE["data"], "sources": [{"text": str(folder / "corpus.txt")}]}
    return {**RECIPE, "data": data, **changed}


def stamps(folder: Path) -> dict[str, int]:
    return {
        one.parent.name: one.stat().st_mtime_ns for one in folder.glob("small/runs/*/result.json")
    }


def test_every_size_arm_and_seed_is_run_and_judged(climbed):
    folder, found = climbed
    ladder = found.content["ladder"]
    assert len(stamps(folder)) == 18 and not found.failed
    assert [size["runs"] for size in ladder["sizes"]] == [6, 6, 6]
    assert all(row["n"] == 3 for size in ladder["sizes"] for row in size["rows"])
    (row,) = ladder["arms"]
    assert row["arm"] == "relu2" and row["trend"]["slope"] is not None
    assert row["beyond"][0]["parameters"] == 1e5
    written = json.loads((folder / "small" / "comparison.json").read_text("utf-8"))
    assert written["ladder"]["arms"][0]["said"] == row["said"]
    page = (folder / "small" / "report.html").read_text("utf-8")
    assert '<section id="ladder"' in page
    assert not any("left out" in one for one in found.content["remarks"])


def test_typed_again_nothing_is_run_twice(climbed):
    folder, found = climbed
    before = stamps(folder)
    again = layerlab.compare(given(folder), out=folder, progress=False)
    assert stamps(folder) == before
    assert again.content["ladder"] == found.content["ladder"]


def test_its_folder_is_judged_without_recipe_or_text(climbed):
    folder, found = climbed
    again = layerlab.compare(folder / "small", out=folder, judge=True, progress=False)
    assert again.content["ladder"] == found.content["ladder"]
    assert again.rows == found.rows and again.content["remarks"] == found.content["remarks"]


def test_the_plain_comparison_at_its_own_size_finds_its_runs(climbed):
    """The runs are the same, and so are their losses; the page is one of its own."""
    folder, found = climbed
    before = stamps(folder)
    alone = given(folder)
    del alone["ladder"]
    plain = layerlab.compare(alone, out=folder, progress=False)
    assert stamps(folder) == before
    largest = found.content["ladder"]["sizes"][-1]["rows"]
    for row, other in zip(plain.rows, largest, strict=True):
        assert (row["nats"], row["difference"]) == (other["nats"], other["difference"])
    pages = [one.parent.name for one in folder.glob("small/**/report.html")]
    assert "small" in pages and "llama-relu2" in pages


@pytest.mark.full
def test_processes_carry_out_the_same_runs(climbed, monkeypatch, tmp_path):
    """One worker takes the runs of all sizes, one after the other."""
    folder, found = climbed
    monkeypatch.setenv("LAYERLAB_CACHE", str(folder / "cache"))
    compare = {**RECIPE["compare"], "lockstep": False}
    parallel = {**RECIPE["run"], "max_parallel": 1}
    whole = given(folder, compare=compare, run=parallel)
    there = layerlab.compare(whole, out=tmp_path, progress=False)
    ours, theirs = (
        [size["rows"] for size in one.content["ladder"]["sizes"]] for one in (there, found)
    )
    losses = [[[row["nats"] for row in rows] for rows in one] for one in (ours, theirs)]
    assert losses[0] == losses[1]


def test_an_arm_that_no_size_can_be_matched_at_names_the_size(climbed):
    """WideNet at its narrowest is larger than the smallest baseline."""
    folder, _ = climbed
    compare = {**RECIPE["compare"], "arms": ["llama", "widenet"], "match": "parameters"}
    model = {**RECIPE["model"], "inner": 8}
    with pytest.raises(UserError, match=r"^at [\d.]+ k parameters: .*already gives"):
        layerlab.compare(given(folder, compare=compare, model=model), out=folder, progress=False)


def test_a_run_under_other_settings_is_left_out_for_what_differs(climbed, tmp_path):
    """It is held against its own size, not against the largest."""
    folder, _ = climbed
    shutil.copytree(folder / "small" / "runs", tmp_path / "small" / "runs")
    changed = given(folder, train={**RECIPE["train"], "weight_decay": 0.2})
    with pytest.raises(UserError, match=r"left out, because train\.weight_decay is 0\.1 there"):
        layerlab.compare(changed, out=tmp_path, judge=True, progress=False)
