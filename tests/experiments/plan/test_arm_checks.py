"""Runs that could not be compared are refused while they are a plan, in the words of later."""

from typing import Any

import pytest

from layerlab import UserError
from layerlab.experiments.plan.arm_checks import check_comparable
from layerlab.experiments.plan.equal_terms import VariedSettings, check_equal_terms
from layerlab.experiments.session import prepare
from tests.api.test_train import SMALL
from tests.support.refused import refusal, refuses
from tests.training.support.drawn import manifest, recipe, runs


def half(**settings: Any) -> list[Any]:
    return ["llama", {"name": "half", "variant": "llama", "set": settings}]


def planned(*arms: Any, **compare: Any) -> None:
    found = recipe(*arms, **compare)
    assert found.compare is not None
    check_comparable(found.compare, runs(found))


@pytest.mark.parametrize(
    "setting",
    [
        {"train.batch_size": 2},
        {"train.learning_rate": 0.1},
        {"train.weight_decay": 0.5},
        {"control.qk_clip": 9},
    ],
)
def test_a_plan_is_refused_in_the_line_that_its_manifests_would_get(setting):
    assert refusal(planned, *half(**setting)) == refusal(
        check_equal_terms,
        [manifest(run) for run in runs(recipe(*half(**setting)))],
        VariedSettings(),
    )
    planned(*half(**setting), allowed_differences=list(setting))


def test_what_follows_from_where_an_arm_runs_is_foreseen_too():
    with pytest.raises(
        UserError, match=r'machine\.threads is 1 in .* compare\.allowed_differences = \["mach'
    ):
        planned(*half(**{"run.threads": 2}))
    planned(*half(**{"run.threads": 2}), allowed_differences=["machine.*"])
    with pytest.raises(UserError, match=r"machine\.device is 'cpu' in .* and 'cuda' in half-s1"):
        planned(*half(**{"run.device": "cuda:1"}))
    # A GPU has one name under two numbers: which it is, is known when it is used.
    numbers = [{"name": one, "set": {"run.device": f"cuda:{one}"}} for one in "01"]
    planned(*numbers)


def test_arms_seeds_and_swept_rates_may_differ():
    planned()
    planned("llama", "pangu-pi", match="parameters", learning_rates=[1e-3, 3e-3])
    planned("llama", "gpt2", search="optuna", learning_rates=[1e-3, 3e-3])


@pytest.mark.parametrize(
    ("pattern", "near"),
    [
        ("trian.batch", "train.batch_size"),
        ("train.bach", "train.batch_size"),
        ("trian", "train"),
        ("contol.*", "control.*"),
        ("version.torch", "versions.torch"),
        ("run.threads", "machine.threads"),
        ("zzz", None),
    ],
)
def test_a_declaration_of_nothing_is_told_the_nearest(pattern, near):
    told = refusal(planned, allowed_differences=["train.batch_size", pattern])
    guess = f"did you mean {near!r}? " if near else ""
    assert told == (
        f"compare.allowed_differences has {pattern!r}, which no run has; {guess}expected a setting "
        'by its path, as "train.batch_size", or a whole section: "machine.*"'
    )


@pytest.mark.parametrize("pattern", ["train", "train.*", "*", "emulate.*", "batch_tokens"])
def test_whatever_a_run_has_can_be_declared(pattern):
    planned(allowed_differences=[pattern])


@pytest.mark.full
def test_a_part_of_the_held_out_text_is_another_text_in_other_words(tmp_path):
    own = {"name": "words", "variant": "llama", "set": {"data.vocab_size": 290}}
    recipe = {
        **SMALL,
        "compare": {"arms": ["llama", own], "allowed_differences": ["data.vocab_size"]},
    }
    said = (
        r"evaluate\.max_eval_blocks = \d+ would judge each on another part of it; .*as there are: "
    )
    enough = int(refuses(said, prepare, recipe, tmp_path, progress=False).rpartition(" ")[2])
    assert prepare(recipe, tmp_path, {"evaluate.max_eval_blocks": enough}, progress=False).runs
    with pytest.raises(UserError, match=said):
        prepare(recipe, tmp_path, {"evaluate.max_eval_blocks": enough - 1}, progress=False)


@pytest.mark.full
def test_arms_of_one_tokenizer_may_be_judged_on_a_part(tmp_path):
    (tmp_path / "own.txt").write_text("Apples fell and fell.\n" * 200)
    own = {"data.sources": [{"text": str(tmp_path / "own.txt")}]}
    arm = {"name": "text", "variant": "llama", "set": own}
    tokenizer = {"data": {"tokenizer": "pre-norm"}}
    recipe = {
        **SMALL,
        **tokenizer,
        "compare": {"arms": ["llama", arm], "allowed_differences": ["data.sources"]},
    }
    assert prepare(recipe, tmp_path, progress=False).runs
