"""Gradients of the first block and the last: what a monitor read, and what claims make of it."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerlab.experiments.analysis.compare import compare_runs
from layerlab.experiments.analysis.readings.gradient_profile import gradient_ratio, profiles
from layerlab.recipes.training import TrainingRecipe, make_recipe
from layerlab.records.layer_names import EMBEDDING
from layerlab.records.run import RunRecord
from tests.training.support.drawn import recipe, record, runs

NORMS = st.lists(st.floats(1e-12, 1e12), min_size=2, max_size=2)
SLOW = {"name": "slow", "variant": "llama"}


def reading(update: int, norms: list[Any]) -> dict[str, Any]:
    """An event of a monitor: embedding, the blocks, what follows, and the whole gradient."""
    each = enumerate([100.0, *norms, 0.001], EMBEDDING)
    rows = [{"layer": layer, "head": None, "measure": "gradient", "value": v} for layer, v in each]
    other = [{"layer": 1, "head": None, "measure": "growth", "value": 7.0}]
    whole = [{"layer": None, "head": None, "measure": "gradient", "value": 101.0}]
    return {"kind": "monitor", "update": update, "readings": [*other, *rows, *whole]}


def read(*norms: list[Any], run: int = 0) -> RunRecord:
    """A run of two blocks whose monitor read these norms."""
    one = record(runs(recipe())[run], 3.0)
    events = [reading(10 * number, each) for number, each in enumerate(norms)]
    return RunRecord(manifest=one.manifest, events=(*one.events, *events), result=one.result)


def monitored(*claims: dict[str, Any]) -> TrainingRecipe:
    content = recipe(
        "llama", SLOW, claims=[{"source": "Own", "statement": "So.", **c} for c in claims]
    )
    return make_recipe({**content.model_dump(), "monitor": {"interval": 10}})


def judged(given: TrainingRecipe, slow: tuple[float, ...]) -> dict[str, Any]:
    """The comparison where the gradient of one arm grows by these powers of ten, by seed."""
    found = []
    for run in runs(given):
        grows = slow[run.seed - 1] if run.arm == "slow" else 0.01 * run.seed
        whole = record(run, 3.0)
        events = (*whole.events, reading(0, [10**grows, 1.0]), reading(10, [10**grows, 1.0]))
        found.append(RunRecord(manifest=whole.manifest, events=events, result=whole.result))
    return dict(compare_runs(given, found).content)


@pytest.mark.full
@given(NORMS, NORMS, st.floats(1e-6, 1e6))
def test_the_ratio_is_that_of_first_to_last_and_knows_no_scale(one, other, scale):
    found = gradient_ratio(read(one, other))
    ratios = [math.log10(norms[0]) - math.log10(norms[1]) for norms in (one, other)]
    assert found == pytest.approx(sum(ratios) / 2, abs=1e-9)
    scaled = gradient_ratio(read([scale * one[0], scale * one[1]], other))
    assert scaled == pytest.approx(found, abs=1e-9)
    turned = gradient_ratio(read(one[::-1], other[::-1]))
    assert turned == pytest.approx(-found, abs=1e-9)


@pytest.mark.parametrize("norms", [[0.0, 1.0], [1.0, None]])
def test_a_reading_without_a_number_is_left_out_and_none_is_no_ratio(norms):
    assert profiles(read([1.0, 1.0], norms)) == {0: [0.0, 0.0]}
    assert gradient_ratio(read(norms)) is None
    assert gradient_ratio(record(runs(recipe())[0], 3.0)) is None


@pytest.mark.parametrize(
    ("slow", "verdict"),
    [
        ((2.0, 2.1, 2.05), "holds"),
        ((-2.0, -2.1, -2.05), "fails"),
        ((2.0, -2.0, 0.1), "not decided"),
    ],
)
def test_a_gradient_that_explodes_is_worse(slow, verdict):
    found = judged(monitored({"relation": "worse", "arm": "slow", "measure": "gradient"}), slow)
    (row,) = found["claims"]
    assert row["verdict"] == verdict
    mean = sum(grows - 0.01 * (seed + 1) for seed, grows in enumerate(slow)) / 3
    assert row["number"] == pytest.approx(mean) and f"{mean:+.4f} powers of ten" in row["said"]


def test_profiles_are_kept_where_a_claim_is_on_them():
    slow = (0.1, 0.12, 0.11)
    alike = {"relation": "alike", "arms": ["llama", "slow"], "margin": 1.0}
    found = judged(monitored({**alike, "measure": "gradient"}), slow)
    assert found["claims"][0]["verdict"] == "holds"
    assert [(one["arm"], one["seed"]) for one in found["gradients"]] == [
        (arm, seed) for arm in ("llama", "slow") for seed in (1, 2, 3)
    ]
    assert found["gradients"][3]["start"] == pytest.approx([0.1, 0.0])
    assert found["gradients"][3]["mean"] == found["gradients"][3]["start"]
    assert judged(monitored(alike), slow)["gradients"] == []
