"""Runs of layerlab, judged as logs: on equal terms, finished, and beside other comparisons."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import layerlab
from layerlab import UserError
from layerlab.records.parquet.folded_runs import CURVES, MANIFESTS
from layerlab.records.run_files import COMPARISON
from tests.support.refused import refuses
from tests.training.support.drawn import recipe, records, write

LOSSES: dict[str, dict[int, float | None]] = {
    "llama": {1: 3.0, 2: 3.3, 3: 3.1},
    "gpt2": {1: 2.99, 2: 3.2895, 3: 3.0905},
}
DIGESTS = iter(range(100))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The folder of a recipe with the runs of two arms."""
    for one in records(recipe(*LOSSES), LOSSES):
        write(tmp_path / "drawn" / "runs", one)
    return tmp_path / "drawn"


def change(place: Path, name: str, path: str, value: Callable[[], Any]) -> None:
    for file in place.glob(f"runs/{name}/manifest.json"):
        manifest = inner = json.loads(file.read_text("utf-8"))
        *parts, last = path.split(".")
        for part in parts:
            inner = inner[part]
        inner[last] = value()
        file.write_text(json.dumps(manifest), "utf-8")


def said(found: Any) -> str:
    return str(found.content["rows"][1]["said"])


def test_arms_on_equal_terms_are_judged_strictly(place):
    shutil.rmtree(next(place.glob("runs/gpt2-s3*")))  # and its order of the text
    change(place, "gpt2*", "micro_batch", lambda: 2)
    change(place, "gpt2*", "model.parameters", lambda: 1000)
    change(place, "gpt2*", "recipe.model.inner", lambda: 99)  # which its variant has by itself
    assert "also differ" not in said(layerlab.judge(place, strict=True))


@pytest.mark.parametrize(
    ("arm", "path", "value", "named"),
    [
        ("gpt2*", "data.digest", lambda: "d2", "data.digest"),
        ("*", "data.digest", lambda: f"own-{next(DIGESTS)}", "data.digest"),
        ("gpt2*", "data.evaluation", lambda: "others", "data.evaluation"),
        ("gpt2*", "data.order", lambda: "one", "data.order"),
        ("gpt2-s2*", "data.order", lambda: "backwards", "data.order"),
        ("gpt2*", "recipe.data.tokenizer", lambda: "other.json", "data.tokenizer"),
        ("gpt2*", "recipe.model.width", lambda: 32, "model.width"),
        ("gpt2*", "recipe.model.context", lambda: 8, "model.context"),
        ("gpt2*", "machine.processor", lambda: "two", "machine.processor"),
        ("gpt2*", "batch_tokens", lambda: 1, "batch_tokens"),
    ],
)
def test_what_else_differs_is_named(arm, path, value, named, place):
    change(place, arm, path, value)
    assert f"arms also differ in {named}, so" in said(layerlab.judge(place))
    with pytest.raises(UserError, match=f"differs from .* in {named}; type allow=.'{named}'"):
        layerlab.judge(place, strict=True)
    assert "also differ" not in said(layerlab.judge(place, strict=True, allow=[named]))


def test_another_width_of_one_variant_is_named(place):
    change(place, "*", "recipe.model.variant", lambda: "one")
    change(place, "gpt2*", "recipe.model.inner", lambda: 99)
    assert "arms also differ in model.inner, so" in said(layerlab.judge(place))


def test_a_micro_batch_is_named_where_numbers_are_rounded(place):
    change(place, "*", "recipe.emulate.format", lambda: "int8")
    change(place, "gpt2*", "micro_batch", lambda: 2)
    assert "arms also differ in micro_batch, so" in said(layerlab.judge(place))


def test_a_run_that_has_not_finished_is_left_out_by_name(place):
    run = next(place.glob("runs/gpt2-s2*"))
    (run / "result.json").unlink()
    found = layerlab.judge(place).content
    assert [one["seed"] for one in found["runs"] if one["arm"] == "gpt2"] == [1, 3]
    told = "left out, because they have not finished, so that this is not final: gpt2, seed 2 ("
    assert f"{told}{run})" in found["remarks"]
    (run / "events.jsonl").write_text("")  # it has not been evaluated yet
    assert f"{told}{run})" in layerlab.judge(place).content["remarks"]


@pytest.mark.parametrize("arm", LOSSES)
def test_an_arm_of_which_no_run_has_finished_is_refused(arm, place):
    for file in place.glob(f"runs/{arm}-*/result.json"):
        file.unlink()
    with pytest.raises(UserError, match=f"no run of '{arm}' has finished; a verdict on runs"):
        layerlab.judge(place, baseline="llama")


def test_a_changed_journal_is_refused(place):
    file = next(place.glob("runs/gpt2-s2*")) / "events.jsonl"
    file.write_text(file.read_text("utf-8").replace("3.2895", "1.2895"), "utf-8")
    refuses(r"is not believed: its nats is 3[.]2895, and the last", layerlab.judge, place)


@pytest.mark.full
def test_judge_and_compare_replace_no_page_of_each_other(place):
    layerlab.compare(recipe(*LOSSES), out=place.parent, judge=True, progress=False)
    before = (place / "comparison.json").read_bytes()
    with pytest.raises(UserError, match="a comparison of runs of a recipe, which would be repl"):
        layerlab.judge(place, out=place)
    assert (place / "comparison.json").read_bytes() == before
    for _ in range(2):
        layerlab.judge(place, baseline="llama", out=place / "judged")  # its own is written anew
    for name in ("comparison.json", "report.html"):
        shutil.copy(place / "judged" / name, place / name)
    before = (place / "comparison.json").read_bytes()
    with pytest.raises(UserError, match="a comparison of logs, by judge, which would be replaced"):
        layerlab.compare(recipe(*LOSSES), out=place.parent, judge=True, progress=False)
    assert (place / "comparison.json").read_bytes() == before


def test_the_two_files_of_a_folded_comparison_are_no_logs_beside_its_runs(place):
    before = layerlab.judge(place)
    assert any("with their recipe and --judge" in one for one in before.content["remarks"])
    (place / COMPARISON).write_text("{}")
    for name in (CURVES, MANIFESTS):
        pq.write_table(pa.table({"run": ["llama-s1"], "text": ["{}"]}), place / name)
    assert layerlab.judge(place).content["rows"] == before.content["rows"]
