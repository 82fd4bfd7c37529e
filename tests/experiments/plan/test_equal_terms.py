"""Runs that differ in what was not declared are refused, with the way to declare it."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerlab import UserError
from layerlab.experiments.plan.equal_terms import VariedSettings, check_equal_terms, notes
from layerlab.records.settings import flatten
from tests.support.refused import refusal, refuses
from tests.training.support.drawn import manifest, recipe, runs

NOTHING = VariedSettings()


def manifests(*arms: Any, **compare: Any) -> list[dict[str, Any]]:
    return [manifest(run) for run in runs(recipe(*arms, **compare))]


def put(tree: dict[str, Any], path: str, value: Any) -> None:
    *tables, last = path.split(".")
    for table in tables:
        tree = tree[table]
    tree[last] = value


def test_arms_differ_in_their_model_their_seed_and_their_size_alone():
    assert check_equal_terms(manifests(), NOTHING) == []
    assert check_equal_terms(manifests("llama", "pangu-pi", match="parameters"), NOTHING) == []
    swept = manifests(learning_rates=[1e-3, 3e-3])
    assert check_equal_terms(swept, VariedSettings(rates=True)) == []
    with pytest.raises(UserError, match=r'compare.allowed_differences = \["train.learning_rate"\]'):
        check_equal_terms(swept, NOTHING)


def test_parametrizations_are_not_mixed():
    """Nor base widths: neither between arms nor within one, unless that is declared."""
    base = {"train.parametrization": "mup", "train.mup_base_width": 16}
    arms = [{"name": "plain", "variant": "llama"}, {"name": "mup", "variant": "llama", "set": base}]
    found = manifests(*arms)
    with pytest.raises(UserError, match=r"declared: train\.parametrization is 'standard' in pl"):
        check_equal_terms(found, NOTHING)
    declared = check_equal_terms(found, VariedSettings(differ=("train.parametrization",)))
    assert [one.path for one in declared] == ["train.parametrization"]
    other = {"name": "wide", "variant": "llama", "set": {**base, "train.mup_base_width": 8}}
    with pytest.raises(
        UserError, match=r"train\.mup_base_width is 16 in mup-s1.* and 8 in wide-s1"
    ):
        check_equal_terms(manifests(arms[1], other), NOTHING)


def test_the_batch_change_of_the_eight_residuals_is_refused():
    """Methods 3, 4 and 6 ran at half the batch with twice the updates (residuals24)."""
    arms = ["llama", {"name": "three", "variant": "history-3", "set": {"train.batch_size": 8}}]
    tokens = {"max_steps": None, "tokens": 16 * 16 * 40, "batch_size": 16}
    found = [manifest(run) for run in runs(recipe(*arms, train=tokens))]
    lengths = {(one["arm"], one["recipe"]["train"]["max_steps"]) for one in found}
    assert lengths == {("llama", 40), ("three", 80)}
    said = refusal(check_equal_terms, found, NOTHING)
    assert said.startswith(
        "runs differ in what was not declared: train.batch_size is 16 in llama-s1"
    )
    assert "and 8 in three-s1" in said
    assert "another batch is another number of updates" in said
    assert said.endswith(
        'make them equal, or type compare.allowed_differences = ["train.batch_size"]'
    )
    declared = check_equal_terms(found, VariedSettings(differ=("train.batch_size",)))
    assert [one.path for one in declared] == ["train.batch_size"]
    assert declared[0].values == (16, 8)


def test_a_declared_batch_does_not_excuse_other_tokens():
    arms = ["llama", {"name": "half", "variant": "llama", "set": {"train.batch_size": 8}}]
    found = [manifest(run) for run in runs(recipe(*arms, train={"batch_size": 16}))]
    assert check_equal_terms(found, VariedSettings(differ=("train.batch_size",)))
    found[1]["recipe"]["train"]["max_steps"] += 1
    with pytest.raises(UserError, match=r'allowed_differences = \["train.max_steps"\]'):
        check_equal_terms(found, VariedSettings(differ=("train.batch_size",)))


DECISIVE = [
    "recipe.train.weight_decay",
    "recipe.train.mixed_precision",
    "recipe.data.tokenizer",
    "recipe.evaluate.max_eval_blocks",
    "recipe.control.spectral_penalty",
    "recipe.emulate.format",
    "data.digest",
    "data.evaluation",
    "data.order",
    "machine.processor",
    "machine.threads",
    "versions.torch",
    "batch_tokens",
]


@pytest.mark.parametrize("path", DECISIVE)
@pytest.mark.parametrize("place", [0, 1, 3])
def test_one_run_that_differs_anywhere_is_found_and_can_be_declared(path, place):
    found = manifests()
    put(found[place], path, "other")
    name = path.removeprefix("recipe.")
    told = refuses(rf'compare.allowed_differences = \["{name}"', check_equal_terms, found, NOTHING)
    assert "other" in told and found[place]["run"] in told
    assert [one.path for one in check_equal_terms(found, VariedSettings(differ=(name,)))] == [name]
    pattern = name.split(".")[0] + ("*" if "." not in name else ".*")
    assert check_equal_terms(found, VariedSettings(differ=(pattern,)))
    assert check_equal_terms(found, VariedSettings(differ=(name.split(".")[0],)))


@pytest.mark.full
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_whatever_setting_is_changed_alone_it_is_refused(data):
    found = manifests()
    beside = ("recipe.model", "model", "run", "arm", "recipe.train.seed", "recipe.train.micro")
    paths = [path for path, _ in flatten(found[0]) if not path.startswith(beside)]
    path = data.draw(st.sampled_from([one for one in paths if one != "micro_batch"]))
    put(found[data.draw(st.integers(0, 5))], path, "other")
    refuses("differ in what was not declared", check_equal_terms, found, NOTHING)


def test_an_arm_trains_one_model():
    found = manifests()
    found[2]["recipe"]["model"]["inner"] = 48
    told = refusal(check_equal_terms, found, NOTHING)
    assert "model.inner is 32 in llama-s1" in told
    assert "the runs of one arm must train one model; run that arm anew" in told


def test_arms_of_one_seed_see_one_order():
    found = manifests()
    assert len({one["data"]["order"] for one in found}) == 3
    found[3]["data"]["order"] = found[0]["data"]["order"]
    with pytest.raises(UserError, match=r"data.order is .*text in another order, are no paired"):
        check_equal_terms(found, NOTHING)


def test_matching_by_time_changes_the_updates_of_an_arm_and_not_those_of_a_run():
    found = manifests()
    for one in found:
        one["recipe"]["train"]["max_steps"] = 20 if one["arm"] == "llama" else 17
    assert check_equal_terms(found, VariedSettings(time=True)) == []
    refuses(r'"train.max_steps"', check_equal_terms, found, NOTHING)
    found[3]["recipe"]["train"]["max_steps"] = 5
    refuses(r'"train.max_steps"', check_equal_terms, found, VariedSettings(time=True))


def test_a_smaller_micro_batch_is_allowed_and_noted():
    found = manifests()
    assert notes(found) == []
    found[1]["micro_batch"] = 2
    found[1]["recipe"]["train"]["micro_batch_size"] = 2
    assert check_equal_terms(found, NOTHING) == []
    (said,) = notes(found)
    assert said.startswith("micro-batches of 2, 4 sequences were used; the tokens of an update")


@pytest.mark.parametrize("format", ["int8", "nvfp4", "mxfp4"])
def test_a_micro_batch_that_decides_what_is_rounded_is_declared(format):
    found = manifests()
    for one in found:
        one["recipe"]["emulate"]["format"] = format
    found[1]["micro_batch"] = 2
    if format == "mxfp4":
        assert check_equal_terms(found, NOTHING) == []
        return
    refuses(r'one scale .*allowed_differences = \["micro_batch"', check_equal_terms, found, NOTHING)
    found[1]["recipe"]["train"]["micro_batch_size"] = 2
    refuses(r'one scale .* = \["train.micro_batch_size"\]', check_equal_terms, found, NOTHING)
    assert check_equal_terms(found, VariedSettings(differ=("train.micro_batch_size",)))


def test_a_micro_batch_that_follows_from_another_batch_is_not_noted():
    half = {"name": "half", "variant": "llama", "set": {"train.batch_size": 2}}
    found = manifests("llama", half, allowed_differences=["train.batch_size"])
    assert {one["micro_batch"] for one in found} == {2, 4}
    assert notes(found) == []
    found[0]["micro_batch"] = 1
    assert [one.split(" sequences")[0] for one in notes(found)] == ["micro-batches of 1, 4"]


def test_of_many_differences_the_first_few_are_named_and_all_can_be_typed():
    found = manifests()
    for name in (
        "weight_decay",
        "max_grad_norm",
        "adam_beta1",
        "adam_beta2",
        "adam_epsilon",
        "lr_scheduler_type",
    ):
        found[1]["recipe"]["train"][name] = "x" * 500
    said = refusal(check_equal_terms, found, NOTHING)
    assert "; and 2 more" in said and '"train.lr_scheduler_type"' in said
    assert len(said) < 1200


def test_a_section_declares_what_it_varies():
    section = recipe(
        learning_rates=[1e-3, 1e-2], match="time", allowed_differences=["machine.*"]
    ).compare
    assert VariedSettings.of(section) == VariedSettings(
        differ=("machine.*",), rates=True, time=True
    )


def test_where_one_text_lies_is_no_difference_and_what_two_are_called_is():
    lying = [{"data.sources": [{"text": f"{one}own.txt"}]} for one in ("", "texts/")]
    found = [manifest(run) for one in lying for run in runs(recipe().change(one))]
    assert check_equal_terms(found, NOTHING) == []
    for one in found[len(found) // 2 :]:
        one["data"]["digest"] = "another"
    refuses(r'allowed_differences = \["data.sources"\]', check_equal_terms, found, NOTHING)
