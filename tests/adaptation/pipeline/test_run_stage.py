"""A stage is kept under the hash of what it read, or not at all."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from layerlab import UserError
from layerlab.adaptation.pipeline.plan import check_inputs, plan_stages
from layerlab.adaptation.pipeline.run_stage import STEPS, StageContext
from layerlab.adaptation.pipeline.stage import StageStore
from layerlab.data.cleaning.clean import TEXT
from layerlab.recipes.adaptation import make_recipe
from tests.adaptation.lessons import recipe


def context(folder: Path, kind: str, tell: Any = lambda said, share: None) -> StageContext:
    read = make_recipe(recipe(folder, arm=[{"name": "one"}, {"name": "two"}]))
    stage = next(one for one in plan_stages(read) if one.kind == kind)
    return StageContext(read.arms()["one"], stage, StageStore(folder / "stages"), tell)


def test_a_text_that_is_changed_while_it_is_cleaned_is_not_kept(tmp_path):
    """The second of two is edited while the first is read."""

    def edit(said: str, share: float) -> None:
        file = tmp_path / "nature.jsonl"
        file.write_text(file.read_text().replace("river", "brook"))

    place = context(tmp_path, "clean", edit)
    with pytest.raises(UserError, match=r"were changed before the stage clean had read") as refused:
        STEPS["clean"](place)
    assert "\n" not in str(refused.value)
    again = context(tmp_path, "clean")  # which puts the text back
    assert STEPS["clean"](again)["result"]["sources"] and again.folder == place.folder
    assert "brook" not in (again.folder / "general-0" / TEXT).read_text()


CHANGES: dict[str, Callable[[Path], Any]] = {
    "tune": lambda folder: (folder / "rows.json").write_text('[{"instruction": "a"}]'),
    "contamination": lambda folder: (folder / "asked.jsonl").write_text('{"question": "b"}'),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_rows_and_questions_that_change_are_found_out(tmp_path, kind):
    (tmp_path / "asked.jsonl").write_text('{"question": "a"}')
    clean = {"benchmarks": [str(tmp_path / "asked.jsonl")], "near_duplicate_threshold": 0}
    read = make_recipe(recipe(tmp_path, clean=clean))
    stage = next(one for one in plan_stages(read) if one.kind == kind)
    check_inputs(read, stage)
    CHANGES[kind](tmp_path)
    with pytest.raises(UserError, match=f"changed before the stage {kind} had read them; type the"):
        check_inputs(read, stage)
