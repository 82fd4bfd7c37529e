"""Own files of a command are named in the recipe of each run that needs them, and in no other."""

from pathlib import Path

import pytest

from layerlab.experiments.plan.own_files import load_files
from layerlab.experiments.plan.plan import plan
from layerlab.experiments.stored_runs import runs_of_recipe
from layerlab.recipes.arms import sides
from layerlab.records.run import RunRecord
from layerlab.report.pages.comparison import render
from layerlab.training.run_spec import own_files
from layerlab.variants import registry
from layerlab.variants.template import write_template
from tests.report.support.race import race
from tests.report.support.repeated import parsed, repeated
from tests.training.support.drawn import EXTENT, manifest, recipe

pytestmark = pytest.mark.full


@pytest.fixture
def idea(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(registry, "_ADDED", {})
    file = tmp_path / "my_idea.py"
    write_template(file)
    return file


def test_an_arm_names_the_file_that_it_needs_and_another_arm_does_not(idea):
    given = recipe("llama", "my-idea")
    loaded = load_files(given, idea)
    own = sides(loaded)
    assert own["my-idea"].model.load == (str(idea),) and own["llama"].model.load == ()
    assert loaded.compare is not None and loaded.compare.arms[0] == "llama"
    # What is loaded beside it makes no other run of the baseline.
    alone = plan(recipe("llama", "gpt2"), EXTENT)
    assert plan(loaded, EXTENT)[0].name == alone[0].name


def test_a_single_run_names_it_too_and_once(idea):
    single = recipe().change({"compare": None, "model.variant": "my-idea"})
    loaded = load_files(single, [idea])
    assert loaded.model.load == (str(idea),)
    assert load_files(loaded, [idea]).model.load == (str(idea),)
    assert load_files(recipe().change({"compare": None}), [idea]).model.load == ()


def test_the_page_repeats_it_with_the_file(idea):
    loaded = load_files(recipe("llama", "my-idea"), idea)
    page = render(
        {**race(("llama", "my-idea"), updates=50), "recipe": loaded.model_dump(mode="json")}
    )
    assert parsed(repeated(page))["load"] == [str(idea)]


def test_a_run_of_the_file_before_it_was_changed_is_left_out(idea):
    def planned() -> list[RunRecord]:
        runs = plan(load_files(recipe("llama", "my-idea", seeds=[1]), idea), EXTENT)
        own = {run.name: own_files(run.recipe) for run in runs}
        made = {run.name: manifest(run) for run in runs}
        return [
            RunRecord(manifest={**one, "model": {**one["model"], "files": own[name] or None}})
            for name, one in made.items()
        ]

    before = planned()
    idea.write_text(idea.read_text("utf-8") + "# changed\n", "utf-8")
    after = planned()
    assert before[0].name == after[0].name and before[1].name != after[1].name
    now = load_files(recipe("llama", "my-idea", seeds=[1]), idea)
    assert now.compare is not None
    kept, left = runs_of_recipe(now.compare, plan(now, EXTENT), [*after, before[1]])
    assert [one.name for one in kept] == [one.name for one in after]
    assert left == [f"left out, because my_idea.py has changed since: {before[1].name}"]
