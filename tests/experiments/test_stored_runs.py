"""Runs are held against a recipe by what their manifests say, with their text or without it."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerlab.corpus.extent import CorpusSize
from layerlab.experiments.plan.plan import plan
from layerlab.experiments.stored_runs import plan_again, records_in, runs_of_recipe
from layerlab.recipes.comparison_sections import CompareSection
from layerlab.recipes.training import TrainingRecipe, make_recipe
from layerlab.records.run import RunRecord
from layerlab.training.run_spec import RunSpec
from tests.support.refused import refuses
from tests.training.support.drawn import EXTENT, manifest, recipe, record, records, runs, write

LOSSES = {arm: {seed: 3.0 for seed in (1, 2, 3)} for arm in ("llama", "gpt2")}


def section(found: TrainingRecipe) -> CompareSection:
    assert found.compare is not None
    return found.compare


def kept(found: TrainingRecipe, there: list[RunRecord]) -> tuple[list[str], list[str]]:
    mine, left = runs_of_recipe(section(found), plan_again(found, there), there)
    return [one.name for one in mine], left


def ended(run: RunSpec, **data: Any) -> RunRecord:
    content = manifest(run)
    return (
        record(run, 3.0)
        if not data
        else RunRecord(
            manifest={**content, "data": {**content["data"], **data}}, result={"nats": 3.0}
        )
    )


@pytest.mark.full
@settings(max_examples=30)
@given(
    st.sampled_from(["none", "parameters", "flops"]),
    st.sampled_from(
        [{"max_steps": 20}, {"tokens": 2000}, {"num_train_epochs": 1.5}, {"num_train_epochs": 0.7}]
    ),
    st.integers(2000, 9000),
    st.sampled_from([None, 310]),
)
def test_a_plan_comes_out_of_its_runs_as_it_came_out_of_the_text(match, length, tokens, vocab):
    found = recipe("llama", "pangu-pi", train={"max_steps": None, **length}, match=match, seeds=[1])
    found = found.change({"model.vocab": vocab})
    # A text gives whole blocks; the manifest has the tokens of the text.
    first = plan(found, CorpusSize(vocab=300, tokens=(tokens - 1) // 16 * 16, digest="d1"))
    there = [ended(run, train_tokens=tokens) for run in first]
    assert [run.name for run in plan_again(found, there)] == [run.name for run in first]
    assert kept(found, there) == ([run.name for run in first], [])


def test_the_order_is_that_of_the_plan_and_a_part_of_it_will_do(tmp_path):
    found = recipe()
    there = records(found, LOSSES)
    for one in there[1:]:
        write(tmp_path, one)
    (tmp_path / "something").mkdir()
    again = records_in(tmp_path)
    assert [one.name for one in again] == sorted(one.name for one in there[1:])
    assert kept(found, again) == ([one.name for one in there[1:]], [])
    assert records_in(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"train.max_steps": 30}, "train.max_steps is 30 there and 20 in the recipe"),
        ({"model.options": {"head": "untied"}}, "model.options.head is 'untied' there and not set"),
        ({"train.learning_rate": 0.5}, "train.learning_rate is 0.5 there and 0.001 in the recipe"),
        ({"data.sources": [{"text": "other.txt"}]}, "data.sources is "),
    ],
)
def test_runs_of_another_recipe_are_left_out_and_named(change, said):
    found = recipe()
    there, others = records(found, LOSSES), records(found.change(change), LOSSES)
    names, (left,) = kept(found, [*others, *there])
    assert names == [one.name for one in there]
    assert left.startswith(f"left out, because {said}"), left
    assert left.endswith(f": {', '.join(one.name for one in others)}")


def test_arms_seeds_and_rates_that_are_not_planned_are_handed_on_to_be_named():
    found = recipe(learning_rates=[0.1, 0.2])
    more = recipe("llama", "gpt2", "history-1", seeds=[1, 4], learning_rates=[0.2, 0.4])
    there = [ended(run) for run in runs(found)]
    beside = [ended(run) for run in runs(more) if run.name not in {one.name for one in there}]
    names, left = kept(found, [*beside, *there])
    assert left == [] and set(names) == {one.name for one in [*there, *beside]}
    assert names[: len(there)] == [one.name for one in there]


def test_a_search_has_runs_at_any_rate_and_of_its_own_recipe_alone():
    found = recipe(learning_rates=[1e-4, 1e-1], search="optuna")
    rates = [ended(run) for run in runs(recipe(learning_rates=[2e-4, 3e-3], seeds=[1]))]
    other = [ended(run) for run in runs(recipe(learning_rates=[2e-4], seeds=[1]).change(WIDER))]
    names, (left,) = kept(found, [*rates, *other])
    assert set(names) == {one.name for one in rates}
    assert left.startswith("left out, because model.width is 64 there and 16 in the recipe: ")


WIDER = {"model.width": 64, "model.inner": 128}


def test_where_a_text_lies_is_no_part_of_it():
    found = make_recipe(
        {
            "model": {"width": 16, "layers": 1, "heads": 2, "context": 16},
            "train": {"max_steps": 2},
            "compare": {"arms": ["llama"]},
        }
    )
    places = [
        {"data.sources": [{"text": f"{one}corpus.txt"}], "data.tokenizer": f"{one}words.json"}
        for one in ("/data/", "")
    ]
    there = [ended(run) for run in plan(found.change(places[0]), EXTENT)]
    names, left = kept(found.change(places[1]), there)
    assert len(names) == 3 and left == []
    hub = found.change({"data.sources": [{"text": "hf:one/corpus.txt"}]})
    assert len(kept(hub, there)[1]) == 1


def test_where_a_python_file_lies_is_no_part_of_it(tmp_path):
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        (folder / "mine.py").write_text("PARTS = ()\n")
    one, two = (
        recipe().change({"model.load": [str(tmp_path / name / "mine.py")]})
        for name in ("one", "two")
    )
    there = [ended(run) for run in plan(one, EXTENT)]
    assert kept(two, there) == ([run.name for run in plan(two, EXTENT)], [])


def test_runs_of_two_texts_are_refused_and_a_plan_that_knows_its_own_leaves_the_others():
    found = recipe()
    old, new = (plan(found, replace(EXTENT, digest=name)) for name in ("old", "new"))
    there = [ended(run) for run in (old[0], *new)]
    refuses(f"{old[0].name} and .* were made on two texts, and both", plan_again, found, there)
    mine, (left,) = runs_of_recipe(section(found), new, there)
    assert [one.name for one in mine] == [run.name for run in new]
    assert left == (
        f"left out, because their text is another than that of the recipe: {old[0].name}"
    )


def test_arms_that_are_matched_by_time_are_as_long_as_their_runs():
    found = recipe(match="time")
    long = [
        replace(run, recipe=run.recipe.change({"train.max_steps": 31, "evaluate.eval_steps": 3}))
        if run.arm == "gpt2"
        else run
        for run in runs(found)
    ]
    assert kept(found, [ended(run) for run in long]) == ([run.name for run in long], [])
    # The baseline is as long as the recipe says.
    first = replace(long[0], recipe=long[0].recipe.change({"train.max_steps": 31}))
    assert kept(found, [ended(first), *map(ended, long[1:])])[1] == [
        f"left out, because train.max_steps is 31 there and 20 in the recipe: {first.name}"
    ]
