"""Other arms under one recipe share its runs, and have a page of their own."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from layerlab.cli.app import app
from layerlab.experiments.page_folder import LONGEST, page_folder
from layerlab.experiments.session import PreparedRecipe
from layerlab.recipes.toml import write_toml
from tests.training.support.drawn import recipe, records, write

LOSSES = {
    "llama": {1: 3.0, 2: 3.3, 3: 3.1},
    "gpt2": {1: 2.99, 2: 3.2895, 3: 3.0905},
    "relu2": {1: 3.2, 2: 3.5, 3: 3.3},
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The folder of a recipe with the runs of three arms."""
    for one in records(recipe(arms=list(LOSSES)), LOSSES):
        write(tmp_path / "drawn" / "runs", one)
    return tmp_path / "drawn"


def judge(place: Path, *arms: str, **settings: Any) -> str:
    given = recipe(arms=list(arms), **settings)
    file = place.parent / "drawn.toml"
    file.write_text(write_toml(given.model_dump(mode="json", exclude_none=True)))
    done = CliRunner().invoke(app, ["compare", str(file), "--judge", "--out", str(place.parent)])
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def arms_in(folder: Path) -> list[str]:
    return json.loads((folder / "comparison.json").read_text("utf-8"))["arms"]


@pytest.mark.full
def test_other_arms_leave_the_first_page_as_it_is(place):
    first = judge(place, "llama", "gpt2")
    assert "other arms" not in first
    before = (place / "report.html").read_bytes()
    second = judge(place, "llama", "relu2")
    own = place / "comparisons" / "llama-relu2"
    assert (place / "report.html").read_bytes() == before and arms_in(place) == ["llama", "gpt2"]
    assert arms_in(own) == ["llama", "relu2"] and (own / "report.html").is_file()
    assert "compares other arms (llama, gpt2) and is left as it is." in second
    swapped = judge(place, "gpt2", "llama")
    assert "compares with another baseline (llama) and is left as it is." in swapped
    shutil.rmtree(place / "comparisons" / "gpt2-llama")
    # The runs are shared: the page has their manifests.
    assert "relu2-s1" in (own / "report.html").read_text("utf-8")
    # Typed again, each finds its own page.
    assert "other arms" not in judge(place, "llama", "gpt2")
    judge(place, "llama", "relu2")
    assert [one.name for one in (place / "comparisons").iterdir()] == ["llama-relu2"]


@pytest.mark.full
def test_other_settings_leave_the_first_page_as_it_is(place):
    for one in records(recipe("llama", "gpt2", train={"max_steps": 24}), LOSSES):
        write(place / "runs", one)
    judge(place, "llama", "gpt2", seeds=[1, 2])
    before = (place / "comparison.json").read_bytes()
    told = judge(place, "llama", "gpt2", train={"max_steps": 24})
    assert (place / "comparison.json").read_bytes() == before
    assert "report.html compares under other settings (train.max_steps is 20) and is" in told
    judge(place, "llama", "gpt2", confidence=0.9)
    others = {one.name: steps_in(one) for one in (place / "comparisons").iterdir()}
    assert sorted(others.values()) == [20, 24] and others["llama-gpt2"] == 24
    # Judged again, or with more seeds, each finds its own page.
    judge(place, "llama", "gpt2", train={"max_steps": 24}, seeds=[1, 2])
    judge(place, "llama", "gpt2", confidence=0.9)
    more = judge(place, "llama", "gpt2", seeds=[1, 2, 3])
    assert "other settings" not in more and (place / "comparison.json").read_bytes() != before
    assert others == {one.name: steps_in(one) for one in (place / "comparisons").iterdir()}


def steps_in(folder: Path) -> int:
    recipe = json.loads((folder / "comparison.json").read_text("utf-8"))["recipe"]
    return int(recipe["train"]["max_steps"])


@pytest.mark.full
def test_another_baseline_is_another_comparison(place):
    judge(place, "llama", "gpt2")
    judge(place, "gpt2", "llama")
    assert arms_in(place) == ["llama", "gpt2"]
    assert arms_in(place / "comparisons" / "gpt2-llama") == ["gpt2", "llama"]


@pytest.mark.full
def test_a_page_of_its_own_is_judged_again_by_its_folder(place):
    judge(place, "llama", "gpt2")
    judge(place, "llama", "relu2")
    own = place / "comparisons" / "llama-relu2"
    (own / "report.html").unlink()
    done = CliRunner().invoke(app, ["compare", str(own), "--judge"])
    assert done.exit_code == 0, done.output
    assert (own / "report.html").is_file() and arms_in(place) == ["llama", "gpt2"]


@pytest.mark.full
def test_seeds_added_after_a_look_are_told_on_the_page_of_other_arms_too(place):
    judge(place, "llama", "gpt2", seeds=[1, 2])
    told = judge(place, "llama", "gpt2", "relu2", seeds=[1, 2, 3])
    assert "seeds added after a look: 3" in told


def test_a_name_of_many_arms_is_cut_and_stays_one(tmp_path):
    (tmp_path / "comparison.json").write_text('{"baseline": "llama", "arms": ["llama"]}')
    many = [{"name": f"arm-number-{one}", "variant": "llama"} for one in range(20)]
    names = {
        page_folder(PreparedRecipe(recipe=recipe(arms=arms), runs=(), out=tmp_path)).name
        for arms in (many, many[:-1])
    }
    assert len(names) == 2 and max(map(len, names)) == LONGEST
