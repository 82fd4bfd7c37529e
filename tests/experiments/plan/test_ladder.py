"""Sizes of a ladder: what they are met by, and that a size is a comparison like any other."""

import math
import re
from itertools import pairwise
from typing import Any

import pytest
import torch

from layerlab.corpus.extent import CorpusSize
from layerlab.experiments.plan.ladder import NEAR, PROPORTION, baseline_of, plan_rungs
from layerlab.experiments.plan.plan import plan
from layerlab.model.build import build
from layerlab.model.cost.cost import account
from layerlab.model.parametrization import score_factor, width_ratio
from layerlab.recipes.training import TrainingRecipe, load_recipe, make_recipe
from layerlab.training.run_spec import count_costs, design_model
from layerlab.training.setup import build_model
from tests.support.refused import refusal

EXTENT = CorpusSize(vocab=512, tokens=10_000_000, digest="a")
MODEL = {"width": 64, "layers": 4, "heads": 8, "kv_heads": 4, "inner": 128, "context": 64}


def recipe(ladder: Any, arms: Any = ("llama", "pangu-pi"), **sections: Any) -> TrainingRecipe:
    return make_recipe(
        {
            "model": {**MODEL, **sections.pop("model", {})},
            "train": {"max_steps": 100, "batch_size": 4, **sections.pop("train", {})},
            "compare": {"arms": list(arms), "seeds": [1, 2, 3], **sections.pop("compare", {})},
            "ladder": ladder,
            **sections,
        }
    )


def test_sizes_are_met_in_whole_heads_and_in_the_recipes_proportion():
    found = plan_rungs(
        recipe({"sizes": ["100k", "300k", "900k"], "tokens_per_parameter": 20}), EXTENT
    )
    for rung, size in zip(found, (1e5, 3e5, 9e5), strict=True):
        run = plan(rung.recipe, EXTENT)[0]
        shape = design_model(run.recipe).shape
        model = build("llama", **{**vars(shape)}, device="meta")
        assert model.num_parameters() == rung.parameters
        assert abs(rung.parameters / size - 1) <= NEAR
        assert shape.head_width == 8 and shape.heads == 2 * shape.kv_heads
        assert shape.inner == 2 * shape.width
        assert abs(math.log(shape.width / shape.layers / 16)) <= math.log(PROPORTION)
        assert rung.tokens == 20 * rung.parameters
        each = run.recipe.train.batch_size * 64
        assert run.recipe.train.max_steps == round(rung.tokens / each)


def test_heads_that_a_base_width_does_not_hold_are_as_wide_there_as_on_the_ladder():
    train = {"parametrization": "mup", "mup_base_width": 32}
    ladder = {"sizes": ["100k", "300k"], "tokens_per_parameter": 20}
    model = {"width": 96, "heads": 12, "kv_heads": 4}
    found = plan_rungs(recipe(ladder, train=train, model=model), EXTENT)
    assert [rung.recipe.train.mup_base_head_width for rung in found] == [8, 8]


@pytest.mark.full
def test_under_mup_one_rate_is_that_of_every_size_and_heads_stay_as_wide():
    train = {"parametrization": "mup", "mup_base_width": 64, "learning_rate": 3e-3}
    ladder = {"sizes": ["100k", "300k", "900k"], "tokens_per_parameter": 20}
    found = [
        plan(rung.recipe, EXTENT)[0] for rung in plan_rungs(recipe(ladder, train=train), EXTENT)
    ]
    designs = [design_model(run.recipe) for run in found]
    assert {one.shape.head_width for one in designs} == {8}
    assert {run.recipe.train.mup_base_head_width for run in found} == {8}
    assert {run.rate for run in found} == {3e-3}
    for run, one in zip(found, designs, strict=True):
        config = build_model(run, torch.device("cpu")).config
        assert width_ratio(config) == one.shape.width / 64 and score_factor(config) == 1


def test_a_run_of_a_size_is_the_plain_run_of_the_same_specification():
    """Name and hash: whoever trains the size alone finds the run finished."""
    first, *_ = plan_rungs(recipe({"sizes": ["100k", "300k"]}), EXTENT)
    shape, names = first.recipe.model, ("width", "layers", "heads", "kv_heads", "inner")
    alone = recipe(None, model={name: getattr(shape, name) for name in names})
    alone = alone.change({"train.tokens": first.tokens})
    ours, theirs = ([run.name for run in plan(one, EXTENT)] for one in (first.recipe, alone))
    assert ours == theirs and len(ours) == 6


def test_a_count_ends_at_the_recipes_own_runs():
    given = recipe({"count": 3, "ratio": 2.0})
    *_, last = plan_rungs(given, EXTENT)
    alone = given.change({"ladder": None})
    assert [run.name for run in plan(last.recipe, EXTENT)] == [
        run.name for run in plan(alone, EXTENT)
    ]
    counts = [one.parameters for one in plan_rungs(given, EXTENT)]
    assert all(1.6 < more / less < 2.5 for less, more in pairwise(counts))


def test_a_size_is_that_of_the_baseline_that_is_named():
    ladder = {"sizes": ["100k", "300k"]}
    first, named = (
        plan_rungs(recipe(ladder, compare=given), EXTENT)[0]
        for given in ({}, {"baseline": "pangu-pi"})
    )
    for rung, arm in ((first, "llama"), (named, "pangu-pi")):
        run = next(run for run in plan(rung.recipe, EXTENT) if run.arm == arm)
        assert count_costs(run.recipe).parameters == rung.parameters


def test_the_largest_of_a_count_trains_as_long_as_the_recipe():
    train = {"max_steps": None, "tokens": 30_000}
    *_, last = plan_rungs(recipe({"count": 2}, train=train), EXTENT)
    assert last.tokens == 30_000


def test_the_number_of_sizes_that_an_error_expects_is_the_most():
    def told(count):
        error = refusal(plan_rungs, recipe({"count": count}), EXTENT)
        return re.search(r"expected (\d+) sizes at most", error)

    most = int(told(700)[1])
    assert told(most + 1) and not told(most)


def test_arms_are_matched_at_each_size_as_they_always_are():
    for one in plan_rungs(
        recipe({"sizes": ["200k", "600k"]}, compare={"match": "parameters"}), EXTENT
    ):
        llama, pangu = (count_costs(run.recipe).parameters for run in plan(one.recipe, EXTENT)[:2])
        assert llama == one.parameters and abs(pangu / llama - 1) < 0.005


def test_rates_are_those_of_a_size():
    ladder = {"sizes": ["100k", "300k"], "learning_rates": [[1e-3, 3e-3], 1e-3]}
    swept, single = plan_rungs(recipe(ladder), EXTENT)
    assert {run.rate for run in plan(swept.recipe, EXTENT)} == {1e-3, 3e-3}
    assert {run.rate for run in plan(single.recipe, EXTENT)} == {1e-3}
    common = plan_rungs(recipe({"count": 2}, compare={"learning_rates": [1e-3, 2e-3]}), EXTENT)
    assert all(one.recipe.compare.learning_rates == (1e-3, 2e-3) for one in common)


def test_what_is_given_in_updates_keeps_its_share():
    given = recipe({"sizes": ["100k", "400k"]}, train={"warmup_steps": 10})
    given = given.change({"evaluate.eval_steps": 20})
    for one in plan_rungs(given, EXTENT):
        run = plan(one.recipe, EXTENT)[0].recipe
        assert run.train.max_steps / run.evaluate.eval_steps == pytest.approx(5, rel=0.1)
        assert run.train.max_steps / run.train.warmup_steps == pytest.approx(10, rel=0.15)


def test_an_arm_may_have_what_is_no_number_of_updates_for_itself():
    own = {"train.warmup_steps": 0.2, "train.learning_rate": 2e-3}
    given = recipe({"count": 2}, ["llama", {"variant": "gpt2", "set": own}])
    for one in plan_rungs(given.change({"compare.allowed_differences": ["train.*"]}), EXTENT):
        *_, run = plan(one.recipe, EXTENT)
        assert (run.arm, run.recipe.train.warmup_steps, run.rate) == ("gpt2", 0.2, 2e-3)


def test_a_large_size_is_found_without_trying_every_width(monkeypatch):
    looked = []
    monkeypatch.setattr(
        "layerlab.experiments.plan.ladder.account",
        lambda spec, shape: looked.append(shape.layers) or account(spec, shape),
    )
    _, large = plan_rungs(recipe({"sizes": ["1M", "70G"], "tokens_per_parameter": 1}), EXTENT)
    assert abs(large.parameters / 70e9 - 1) < 0.01 and large.recipe.model.layers > 300
    assert sum(looked) < 5 * large.recipe.model.layers


def test_the_size_that_an_error_tells_to_write_is_taken():
    model = {"width": 1024, "heads": 16, "layers": 1, "kv_heads": None, "inner": 3073}
    error = refusal(plan_rungs, recipe({"sizes": ["15k", "15M"]}, model=model), EXTENT)
    told = int(re.search(r"write (\d+) among ladder.sizes", error)[1])
    given = recipe({"sizes": [told, "15M"], "tokens_per_parameter": 1}, model=model)
    assert plan_rungs(given, EXTENT)[0].parameters == told


def test_presets_give_sizes_that_are_scaled_too():
    given = recipe({"sizes": ["400M", "900M"]}, model=dict.fromkeys(MODEL))
    given = given.change({"model.preset": "pangu-pi-1b"})
    small, large = (plan(one.recipe, EXTENT)[0].recipe.model for one in plan_rungs(given, EXTENT))
    assert small.inner / small.width == pytest.approx(large.inner / large.width, rel=0.01)
    assert small.width < large.width and baseline_of(given).model.preset == "pangu-pi-1b"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            recipe({"sizes": ["10k", "300k"]}),
            "has 10.0 k parameters within 10 %; the nearest are 18.7 k (width 16, layers 1): write",
        ),
        (
            recipe({"count": 5, "ratio": 10.0}),
            "write a smaller ladder.count or ratio, or narrower heads in [model]",
        ),
        (
            recipe({"sizes": ["1M", "10T"]}),
            "10.0 T parameters in this recipe's proportion are a width of 26096 and 1632 layers; ",
        ),
        (
            recipe({"sizes": ["100k", "300k"], "tokens_per_parameter": 1e300}),
            "with 1e+300 tokens each are 9.09e+304 tokens a run; expected 1 to 1e+15: write ladder",
        ),
        (
            recipe({"sizes": ["100k", "300k"], "tokens_per_parameter": 1e308}),
            "are inf tokens a run; expected 1 to 1e+15: write ladder.tokens_per_parameter = 20",
        ),
        (
            recipe({"sizes": ["100k", "300k"], "tokens_per_parameter": 1e-9}),
            "tokens a run; expected 1 to 1e+15: write ladder.tokens_per_parameter = 20",
        ),
        (
            recipe({"sizes": [95_000, 96_000]}),
            "expected each larger than the one before: write ladder.sizes farther apart",
        ),
        (
            recipe({"count": 2}, ["llama", {"variant": "gpt2", "set": {"model.width": 32}}]),
            "the arm 'gpt2' sets model.width, which a ladder chooses for all arms of a size",
        ),
        (
            recipe({"count": 2}, ["llama", {"variant": "gpt2", "set": {"train.max_steps": 7}}]),
            "the arm 'gpt2' sets train.max_steps, which a ladder chooses",
        ),
        (
            recipe({"count": 2}, ["llama", {"variant": "gpt2", "set": {"train.warmup_steps": 1}}]),
            "the arm 'gpt2' sets train.warmup_steps, which a ladder chooses",
        ),
        (
            recipe({"count": 2}, ["llama", {"variant": "gpt2", "set": {"evaluate.eval_steps": 7}}]),
            "the arm 'gpt2' sets evaluate.eval_steps, which a ladder chooses",
        ),
        (
            recipe(
                {"count": 2, "learning_rates": [3e-3, 1e-3]},
                ["llama", {"variant": "gpt2", "set": {"train.learning_rate": 1e-4}}],
            ),
            "the arm 'gpt2' sets train.learning_rate, which a ladder chooses",
        ),
        (
            recipe({"count": 700}),
            "ladder.count is 700 with a ratio of 3, and the smallest size has less than one of",
        ),
        (
            recipe({"sizes": ["100k", "300k"], "beyond": ["200k"]}),
            "ladder.beyond has 200 k, which is not beyond the largest size of",
        ),
        (
            recipe({"count": 2, "tokens": [1_000_000, 1_000_000]}),
            "tokens per parameter, so that length changes with size; write",
        ),
    ],
)
def test_what_cannot_be_met_is_one_line(given, words):
    assert words in refusal(plan_rungs, given, EXTENT)


@pytest.mark.parametrize("name", ["ladder-pangu", "ladder-residuals"])
def test_ladders_of_the_package_can_be_met(name):
    given = load_recipe(name)
    vocabulary = CorpusSize(vocab=given.data.vocab_size, tokens=1_000_000, digest="a")
    found = plan_rungs(given, vocabulary)
    assert len(found) == 3
    assert all(plan(one.recipe, vocabulary) for one in found)
