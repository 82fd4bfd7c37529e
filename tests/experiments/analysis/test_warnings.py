"""What has to be known beside a verdict."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from layerlab.experiments.analysis.compare import compare_runs
from layerlab.experiments.analysis.warnings import disclose_added_seeds, remarks
from layerlab.experiments.session import PreparedRecipe
from layerlab.experiments.training_plan import TrainingPlan
from layerlab.recipes.training import TrainingRecipe, make_recipe
from tests.training.support.drawn import recipe, record, records, runs


def test_what_a_source_printed_is_told_as_a_reference():
    printed = {"source": "residuals24", "note": "its batches differ", "values": {"llama": 2.5}}
    section = {"arms": ["llama", "gpt2"], "published": printed}
    content = {"train": {"max_steps": 3}, "compare": section}
    recipe = make_recipe(content)
    assert recipe.compare is not None
    (told,) = (one for one in remarks(recipe.compare, {}, []) if "residuals24" in one)
    assert told == (
        "for reference and no target, residuals24 printed llama 2.5; its batches differ"
    )


BASE = {1: 3.0, 2: 3.3, 3: 3.1, 4: 3.2, 5: 3.0}
OTHER = {1: 2.99, 2: 3.32, 3: 3.10, 4: 3.15, 5: 3.0}


def judged(file: Path, given: TrainingRecipe, *finished: int) -> dict[str, Any]:
    """Judge what has finished into a file, as a command does."""
    losses = {
        "llama": {seed: BASE[seed] for seed in finished},
        "gpt2": {seed: OTHER[seed] for seed in finished},
    }
    found = disclose_added_seeds(compare_runs(given, records(given, losses)).content, file)
    file.write_text(json.dumps(found), encoding="utf-8")
    return found


def told(found: dict[str, Any]) -> list[str]:
    return [one for one in found["remarks"] if one.startswith("seeds added after a look")]


def planned(*seeds: int, **settings: Any) -> TrainingRecipe:
    return recipe(seeds=list(seeds), **settings)


def test_seeds_added_after_a_look_are_told_with_every_later_table(tmp_path):
    file = tmp_path / "comparison.json"
    assert told(judged(file, planned(1, 2, 3), 1, 2, 3)) == []
    expected = (
        "seeds added after a look: 4; a table of seeds 1, 2, 3 had been shown before, and p and "
        "intervals do not account for that"
    )
    for _ in range(3):
        assert told(judged(file, planned(1, 2, 3, 4), 1, 2, 3, 4)) == [expected]
    (more,) = told(judged(file, planned(1, 2, 3, 4, 5), 1, 2, 3, 4, 5))
    assert more.startswith("seeds added after a look: 4, 5; a table of seeds 1, 2, 3 had")
    # Fewer than before make the first look no other.
    assert told(judged(file, planned(1, 2), 1, 2)) == []
    assert told(judged(file, planned(1, 2, 3), 1, 2, 3)) == []


def test_a_comparison_that_was_interrupted_goes_on_without_a_word(tmp_path):
    file = tmp_path / "comparison.json"
    assert "looked" not in judged(file, planned(1, 2, 3))
    for finished in ((1,), (1, 2), (1, 2, 3)):
        found = judged(file, planned(1, 2, 3), *finished)
        assert told(found) == [] and found["looked"] == [1, 2, 3]


def test_seeds_added_before_anything_was_seen_are_planned(tmp_path):
    file = tmp_path / "comparison.json"
    judged(file, planned(1, 2))
    assert told(judged(file, planned(1, 2, 3), 1, 2, 3)) == []


def test_a_look_at_other_runs_is_none(tmp_path):
    file = tmp_path / "comparison.json"
    judged(file, planned(1, 2), 1, 2)
    longer = planned(1, 2, 3, train={"max_steps": 40})
    assert told(judged(file, longer, 1, 2, 3)) == []
    judged(file, planned(1, 2), 1, 2)
    assert told(judged(file, planned(3, 4, 5), 3, 4, 5)) == []


def test_a_file_of_before_looks_were_kept_is_a_look_and_a_damaged_one_none(tmp_path):
    file = tmp_path / "comparison.json"
    old = judged(file, planned(1, 2, 3), 1, 2, 3)
    del old["looked"]
    file.write_text(json.dumps(old), encoding="utf-8")
    assert told(judged(file, planned(1, 2, 3, 4), 1, 2, 3, 4))
    for damaged in ("{", "[]", '{"rows": [1]}'):
        file.write_text(damaged, encoding="utf-8")
        assert told(judged(file, planned(1, 2, 3, 4), 1, 2, 3, 4)) == []


def test_an_arm_whose_gradients_are_all_0_learned_nothing():
    given = planned(1, 2, 3)
    found = records(given, {"llama": BASE, "gpt2": OTHER})
    told = "2 of 3 runs of gpt2 learned nothing: the gradient was 0 at every update that was logged"
    for norms in ([0.0, 0.0, 0.0], [0.0, 0.0, 0.1], []):
        drawn = [
            replace(one, events=set_norms(one.events, norms))
            if one.arm == "gpt2" and one.seed != 2
            else one
            for one in found
        ]
        remarks = compare_runs(given, drawn).content["remarks"]
        assert (told in remarks) == (norms == [0.0, 0.0, 0.0])


def set_norms(
    events: Iterable[Mapping[str, Any]], norms: Sequence[float]
) -> tuple[Mapping[str, Any], ...]:
    """Replace the norms of a run's gradients, or leave them out."""
    left = iter(norms)
    plain = ({key: value for key, value in one.items() if key != "norm"} for one in events)
    return tuple(
        {**one, "norm": next(left)} if norms and one["kind"] == "train" else one for one in plain
    )


def test_a_search_of_which_trials_are_missing_is_told():
    searched = recipe(search="optuna", trials=3, learning_rates=[1e-3, 3e-3, 1e-2])
    given = [record(run, BASE[run.seed]) for run in runs(searched)]
    fewer = [one for one in given if (one.arm, one.rate) != ("gpt2", 3e-3)]
    said = (
        "the search for learning rates has not ended: gpt2 2 of 3; no verdict is final before it "
        "has"
    )
    assert said in compare_runs(searched, fewer).content["remarks"]
    whole = compare_runs(searched, given).content["remarks"]
    assert not any("has not ended" in one for one in whole)


def test_too_few_seeds_for_a_verdict_are_named_with_the_plan():
    def planned_remarks(*seeds: int, **settings: Any) -> list[str]:
        task = PreparedRecipe(recipe=planned(*seeds, **settings), runs=(), out=Path())
        return TrainingPlan(task, []).remarks()

    rates = {"learning_rates": [1e-3, 3e-3]}
    assert planned_remarks(1) == [
        "one seed gives a difference and no verdict; plan three or more",
    ]
    assert planned_remarks(1, 2, **rates) == [
        "of 2 seeds the first chooses rates and judges nothing, which leaves too few for a verdict;"
        " plan four or more"
    ]
    assert planned_remarks(1, 2)[0].startswith("with two seeds the spread is")
    assert planned_remarks(1, 2, 3) == planned_remarks(1, 2, 3, 4, **rates) == []
