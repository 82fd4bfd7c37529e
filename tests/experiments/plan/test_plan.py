"""Plans: which runs a recipe stands for, under names that say what decides them."""

import pytest

from layerlab import UserError
from layerlab.corpus.extent import CorpusSize
from layerlab.experiments.plan.plan import plan, resolve_recipe
from layerlab.recipes.arms import sides
from layerlab.recipes.training import load_recipe, make_recipe
from layerlab.recipes.training_sections import FROM_FIRST_WEIGHTS
from layerlab.records.settings import flatten
from layerlab.training.run_spec import count_costs, design_model
from tests.support.refused import refuses

EXTENT = CorpusSize(vocab=300, tokens=10_000, digest="a")
SMALL = {"width": 32, "layers": 2, "heads": 2, "context": 16}


def recipe(**sections):
    return make_recipe({"model": SMALL, "train": {"max_steps": 4, "batch_size": 2}, **sections})


def compared(**comparison):
    return recipe(compare={"arms": ["llama", "history-3"], "seeds": [1, 2], **comparison})


def differing(runs):
    """The paths of settings in which runs differ."""
    flat = [dict(flatten(run.recipe.decisive())) for run in runs]
    return {
        path
        for path in set().union(*flat)
        if any(one.get(path) != flat[0].get(path) for one in flat)
    }


def test_a_recipe_without_a_comparison_is_one_run():
    (run,) = plan(recipe(), EXTENT)
    assert run.arm == "llama" and run.recipe.model.vocab == 300 and run.recipe.data.block_size == 16


def test_seeds_vary_slowest_so_that_the_first_runs_make_a_comparison():
    runs = plan(compared(), EXTENT)
    assert [(run.arm, run.seed) for run in runs] == [
        ("llama", 1),
        ("history-3", 1),
        ("llama", 2),
        ("history-3", 2),
    ]
    assert differing(runs) == {"model.variant", "train.seed"}


def test_runs_are_named_after_what_decides_them():
    first = {run.name for run in plan(compared(), EXTENT)}
    assert len(first) == 4
    assert first == {run.name for run in plan(compared(), EXTENT)}
    other_text = CorpusSize(vocab=300, tokens=10_000, digest="b")
    assert not first & {run.name for run in plan(compared(), other_text)}


def test_rates_multiply_runs():
    assert len(plan(compared(learning_rates=[1e-3, 2e-3, 4e-3]), EXTENT)) == 12


@pytest.mark.parametrize(
    ("train", "steps"),
    [({"max_steps": 7}, 7), ({"tokens": 320}, 10), ({"num_train_epochs": 2}, 625)],
)
def test_lengths_become_updates(train, steps):
    found = resolve_recipe(recipe(train={"batch_size": 2, **train}), EXTENT)
    assert found.train.max_steps == steps


@pytest.mark.parametrize("by", ["ffn", "depth", "width"])
def test_parameters_are_matched_to_half_a_percent_where_the_size_is_fine_enough(by):
    sizes = {**SMALL, "width": 128, "layers": 12, "heads": 4}
    found = recipe(
        model=sizes, compare={"arms": ["llama", "pangu-pi"], "match": "parameters", "match_by": by}
    )
    runs = {run.arm: run for run in plan(found, EXTENT) if run.seed == 1}
    base, other = (count_costs(runs[name].recipe).parameters for name in ("llama", "pangu-pi"))
    match = runs["pangu-pi"].match
    assert match is not None and match.found == other and match.wanted == base
    # A layer is a twelfth of the model, and a head's width goes in steps of two.
    assert abs(match.percent) < {"ffn": 0.5, "depth": 4.5, "width": 2.5}[by]


def test_an_arm_may_be_held_against_another_than_the_baseline():
    runs = plan(load_recipe("sizes"), CorpusSize(vocab=2048, tokens=10**6, digest="a"))
    wanted = {run.arm: count_costs(run.recipe).parameters for run in runs}
    for width in (64, 96, 128):
        assert abs(wanted[f"pangu-pi-{width}"] / wanted[f"llama-{width}"] - 1) < 0.005


def test_arms_change_other_settings_by_their_paths():
    arm = {"name": "half", "set": {"train.batch_size": 1, "train.max_steps": 8}}
    runs = plan(compared(arms=["llama", arm]), EXTENT)
    assert differing(runs) == {"train.batch_size", "train.max_steps", "train.seed"}


MUP = {"max_steps": 4, "parametrization": "mup", "mup_base_width": 16}


@pytest.mark.parametrize(
    ("model", "width"),
    [
        ({}, 8),  # both heads share the base width, as they do that of the model
        ({"head_width": 16}, 16),  # heads stay as wide as they are
    ],
)
def test_heads_at_the_base_width_are_those_of_the_recipe_there(model, width):
    (run,) = plan(recipe(model={**SMALL, **model}, train=MUP), EXTENT)
    assert run.recipe.train.mup_base_head_width == width
    base = design_model(run.recipe).base
    assert base is not None and (base.width, base.head_width) == (16, width)
    # What is written out says the same again, whatever else was left out before.
    assert design_model(make_recipe(run.recipe.model_dump(mode="json"))).base == base
    plain = make_recipe({"model": {**SMALL, **model}, "train": {"max_steps": 4}})
    assert differing([run, *plan(plain, EXTENT)]) == {
        f"train.{name}" for name in FROM_FIRST_WEIGHTS
    }


@pytest.mark.parametrize(
    ("model", "base", "said"),
    [
        (
            {},
            {"mup_base_width": 17},
            r"is 17, which the model's 2 heads do not divide; .* = 16, or",
        ),
        (
            {"head_width": 16},
            {"mup_base_width": 40},
            "is 40, no multiple of a head's width there, 16; write mup_base_width = 32, or another",
        ),
        ({}, {"mup_base_head_width": 12}, "is 16, no multiple of a head's width there, 12; write"),
    ],
)
def test_heads_that_do_not_fit_into_the_base_width_are_refused(model, base, said):
    with pytest.raises(UserError, match=r"^train\.mup_base_width " + said):
        plan(recipe(model={**SMALL, **model}, train={**MUP, **base}), EXTENT)


@pytest.mark.parametrize(
    ("comparison", "said"),
    [
        ({"arms": ["llama", "llama"]}, "two arms are called 'llama'"),
        (
            {"learning_rates": [1e-3, 1e-3]},
            r"compare\.learning_rates \[0\.001, 0\.001\] repeat one; write each once",
        ),
        ({"baseline": "lama"}, "the baseline 'lama' is no arm; did you mean 'llama'"),
        (
            {"seeds": [1, 1]},
            r"compare\.seeds \[1, 1\] repeat one; each counts once: write seeds = \[1\]",
        ),
        (
            {"arms": ["llama", {"name": "own", "set": {"train.seed": 7}}]},
            r"the arm 'own' sets train\.seed, and every arm runs with each of compare\.seeds; take",
        ),
        (
            {
                "arms": ["llama", {"name": "own", "set": {"train.learning_rate": 0.1}}],
                "learning_rates": [1e-3, 3e-3],
            },
            r"the arm 'own' sets train\.learning_rate, and every arm .* compare\.learning_rates",
        ),
        ({"arms": [{"name": "a/b"}]}, "an arm is called 'a/b'"),
        ({"arms": ["lama"]}, "lama"),
    ],
)
def test_what_cannot_be_planned_is_said(comparison, said):
    refuses(said, plan, compared(**comparison), EXTENT)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"train": {"batch_size": 2, "tokens": 10}},
            "10 tokens are less than one update of 2 x 16",
        ),
        ({"model": {**SMALL, "vocab": 100}}, r"model\.vocab is 100, less than the tokenizer's 300"),
        ({"data": {"block_size": 32}}, r"block_size is 32, more than the model's context of 16"),
    ],
)
def test_what_does_not_fit_its_text_or_model_is_refused(changes, said):
    refuses(said, resolve_recipe, recipe(**changes), EXTENT)


def arm_with(**settings):
    changes = {path.replace("__", "."): value for path, value in settings.items()}
    return {"name": "own", "variant": "llama", "set": changes}


def test_an_arm_with_words_of_its_own_is_planned_with_them():
    found = compared(arms=["llama", arm_with(data__vocab=400)], match="parameters")
    own = CorpusSize(vocab=400, tokens=8_000, digest="b")
    runs = {run.arm: run for run in plan(found, EXTENT, {"own": own}) if run.seed == 1}
    assert (runs["llama"].digest, runs["own"].digest) == ("a", "b")
    assert runs["llama"].recipe.model.vocab == 300 and runs["own"].recipe.model.vocab == 400
    sizes = {name: count_costs(run.recipe) for name, run in runs.items()}
    assert sizes["own"].embedding == sizes["llama"].embedding * 400 / 300
    assert sizes["own"].parameters == pytest.approx(sizes["llama"].parameters, rel=0.01)


def test_an_arm_with_a_text_of_its_own_is_judged_on_the_recipes():
    other, heavier = [{"text": "brown"}], [{"text": "python-docs", "weight": 2.0}]
    own = arm_with(data__sources=other)
    data = {name: one.data for name, one in sides(compared(arms=["llama", own])).items()}
    assert data["llama"].eval_sources is None and data["own"].sources[0].text == "brown"
    assert data["own"].eval_sources == data["llama"].sources
    # The same texts in other shares, and other words, leave the held-out text what it is.
    for same in (arm_with(data__sources=heavier), arm_with(data__vocab=400)):
        assert sides(compared(arms=["llama", same]))["own"].data.eval_sources is None


@pytest.mark.parametrize("setting", [{"data__validation": 0.1}, {"data__held": [{"text": "x"}]}])
def test_an_arm_that_holds_out_other_text_is_refused(setting):
    with pytest.raises(UserError, match=r"'own' sets data\.\w+, and would be judged on other text"):
        sides(compared(arms=["llama", arm_with(**setting)]))


@pytest.mark.parametrize("section", ["compare", "ladder"])
def test_an_arm_that_sets_what_all_arms_share_is_refused(section):
    own = arm_with(**{f"{section}__seeds": [1]})
    said = f"'own' sets {section}.seeds, which all arms share; take it out of the arm"
    refuses(said, sides, compared(arms=["llama", own]))


@pytest.mark.parametrize(
    "setting",
    [{"run__executor": "submitit"}, {"run__num_processes": 2}, {"run__slurm__minutes": 5}],
)
def test_an_arm_that_would_be_carried_out_in_another_way_is_refused(setting):
    said = r"'own' sets run\.\w+, which all arms share; take it out of the arm, and write it in"
    refuses(said, sides, compared(arms=["llama", arm_with(**setting)]))
    # Where it computes is its own.
    found = sides(compared(arms=["llama", arm_with(run__device="cuda:1", run__threads=2)]))
    assert (found["own"].run.device, found["own"].run.threads) == ("cuda:1", 2)


def test_an_arm_has_the_size_that_its_baseline_is_matched_to():
    chain = [{"variant": "pangu-pi", "against": "gpt2"}, "gpt2", "llama"]
    found = plan(compared(arms=chain, baseline="llama", match="parameters", seeds=[1]), EXTENT)
    sizes = {run.arm: count_costs(run.recipe).parameters for run in found}
    assert list(sizes) == ["pangu-pi", "gpt2", "llama"]
    assert sizes["pangu-pi"] == pytest.approx(sizes["llama"], rel=0.02)


def test_arms_that_are_held_against_each_other_are_refused():
    circle = [{"variant": "gpt2", "against": "llama"}, {"variant": "llama", "against": "gpt2"}]
    said = r"none is a baseline: 'gpt2' against 'llama', 'llama' against 'gpt2'; leave out one"
    refuses(said, sides, compared(arms=circle))


def test_an_arm_does_not_train_on_what_is_held_out_of_a_part():
    part = {"sources": [{"limit": 9000}]}
    longer = compared(arms=["llama", arm_with(data__sources=[{"limit": 9001}])]).change(
        {f"data.{name}": value for name, value in part.items()}
    )
    said = "reads 'python-docs' beyond the 9,000 bytes whose end is held out"
    refuses(said, sides, longer)
    shorter = compared(arms=["llama", arm_with(data__sources=[{"limit": 8000}])])
    assert sides(shorter)["own"].data.eval_sources == shorter.data.sources
