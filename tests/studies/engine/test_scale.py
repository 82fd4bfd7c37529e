"""On what verdicts are judged: every one has a scale and a unit, and the scales are true."""

from types import SimpleNamespace

import pytest
from safetensors import safe_open

from layerlab import builtin
from layerlab.studies.engine.discovery import studies
from layerlab.studies.engine.record import StudyResult
from layerlab.studies.engine.scale import (
    BUILT_IN,
    TABLES,
    comparison_scale,
    length,
    models,
    random_networks,
    short,
    trained_scale,
    with_scale,
)
from layerlab.studies.recipe_claims import STUDIES as RECIPES
from layerlab.studies.recipe_claims import judge_claim
from layerlab.studies.support import small_models
from tools.builtin_models.recipe import Recipe

# Studies of trainings say what they have trained.
TRAINED = {"dimension-twins", "features-pca", "saliency-repeat", "same-loss"}
TRAINED |= {"scaled-identity-trained", *(one.name for one in RECIPES)}
VERDICT = {"claim": "c", "word": "fails", "number": 0.0, "said": "s", "source": ""}


@pytest.mark.parametrize("name", builtin.NAMES)
def test_the_scale_of_built_in_models_is_that_of_their_weights_and_of_their_card(name):
    with safe_open(builtin.path(name) / "model.safetensors", "pt") as weights:
        sizes = [weights.get_slice(one).get_shape() for one in weights.keys()]
    count = sum(_product(shape) for shape in sizes)
    assert abs(count / builtin.PARAMETERS - 1) < 5e-4
    recipe = Recipe()
    assert recipe.steps * recipe.batch * recipe.context == builtin.TOKENS
    assert f"{builtin.TOKENS:,}" in (builtin.path(name) / "README.md").read_text("utf-8")
    assert BUILT_IN == "built-in models: 0.45 M parameters, 7.4 M tokens"


def _product(shape):
    found = 1
    for side in shape:
        found *= side
    return found


def test_every_study_declares_a_scale_or_is_one_of_trainings():
    for name, one in studies().items():
        said = one.scale.format(**one.options)
        assert bool(said) is (name not in TRAINED), name
        assert "{" not in said and ".0 layers" not in said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (41_000, "41 k"),
        (367_424, "0.37 M"),
        (1_410_688, "1.4 M"),
        (51_000_000, "51 M"),
        (99_700, "0.1 M"),
        (99_700_000, "100 M"),
        (696_000_000, "696 M"),
        (999_700_000, "1 B"),
        (1_100_000_000, "1.1 B"),
    ],
)
def test_a_number_has_two_digits_and_a_unit(value, said):
    assert short(value) == said


def test_several_sizes_are_a_range_and_the_parts_are_found_again():
    both = models([410_112, 1_411_336], [204_800])
    assert both == "0.41 to 1.4 M parameters, 0.2 M tokens"
    assert models([41_000, 900_000], [10_240]) == "41 k to 0.9 M parameters, 10 k tokens"
    for said in (both, f"built-in models: {both}", models([41_000, 900_000], [10_240])):
        assert trained_scale(said) == said.removeprefix("built-in models: ")
    assert length(both) == 0.2e6 and length(models([9], [1_228_800, 3_000_000])) == 3e6
    for other in (TABLES, random_networks(3, 8), f"{BUILT_IN}, and {random_networks(3, 8)}", ""):
        assert trained_scale(other) == "" and length(other) == 0


def test_what_a_verdict_leaves_out_is_of_its_runs_and_else_of_its_study():
    study = SimpleNamespace(scale=random_networks("{layers}", 20), options={"layers": 40})
    content = {"settings": {"draws": 5000, "seed": 0}, "unit": "random initialisations"}
    found = with_scale(VERDICT, content, study)
    assert found["scale"] == "random networks of up to 40 layers, width 20"
    assert found["unit"] == "5,000 random initialisations"
    asked = {**content, "settings": {"draws": 4, "layers": 1}}
    assert with_scale(VERDICT, asked, study)["scale"].startswith(
        "random networks of up to 1 layers"
    )
    ran = {**content, "scale": "1.4 M parameters, 1.2 M tokens"}
    assert with_scale(VERDICT, ran, study)["scale"] == "1.4 M parameters, 1.2 M tokens"
    own = {**VERDICT, "scale": TABLES, "unit": "3 texts"}
    assert with_scale(own, ran, study) == own


def test_a_twin_is_as_large_as_it_says(tmp_path):
    from layerlab.experiments.session import prepare
    from layerlab.training.run_spec import count_costs

    sizes = {"layers": 2, "width": 32}
    task = prepare(
        small_models.recipe(small_models.PLAIN, 1, **sizes, updates=10), tmp_path, progress=False
    )
    assert count_costs(task.runs[0].recipe).parameters == small_models.parameters(**sizes)


def test_a_claim_is_as_large_as_its_arms():
    rows = [{"arm": "small", "parameters": 500_000}, {"arm": "large", "parameters": 1_400_000}]
    runs = [{"arm": "large", "tokens": 307_200}]
    runs += [{"arm": arm, "tokens": None} for arm in ("small", "large")]
    found = {"rows": rows, "runs": runs}
    assert comparison_scale(found, ["large"]) == "1.4 M parameters, 0.31 M tokens"
    assert comparison_scale(found, ["small", "large"]) == "0.5 to 1.4 M parameters, 0.31 M tokens"
    assert comparison_scale(found, ["small"]) == "" == comparison_scale(found, [])
    claim = {"says": "c", "verdict": "holds", "number": None, "said": "holds: x", "source": "Own"}
    told = judge_claim({**claim, "arms": ["large"], "p": 0.01, "pairs": [{"n": 3}]}, found)
    assert (told.scale, told.p, told.said) == ("1.4 M parameters, 0.31 M tokens", 0.01, "x")
    assert told.unit == "3 seeds" and told.number == 0


def test_a_terminal_says_on_what_it_was_judged_and_what_was_set_after_a_look():
    more = {"scale": TABLES, "unit": "3 seeds", "looked": True}
    content = {"verdicts": [{**VERDICT, "word": "smaller than asked", **more}], "remarks": []}
    head, *told = StudyResult(content, {}).lines()
    assert head == [("smaller than asked  ", "cyan"), ("c", "")]
    assert told[1][0][0].strip() == (
        "on arithmetic on printed tables; 3 seeds; its threshold or number of draws was set after "
        "a first result"
    )
