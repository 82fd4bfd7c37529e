"""Looks: which runs each waits for, when a comparison may stop, and how many runs to expect."""

import re
from typing import Any

import pytest

from layerlab import UserError, compare
from layerlab.experiments.statistics.looks import (
    describe_looks,
    expected_runs,
    is_decided,
    stretches,
)
from tests.api.test_train import SMALL
from tests.support.refused import refuses
from tests.training.support.drawn import recipe, runs


def test_every_look_waits_for_the_seeds_that_it_adds():
    given = recipe(seeds=[5, 1, 9, 2], looks=[2, 3, 4])
    assert given.compare is not None
    parts = stretches(given.compare, runs(given))
    assert [{run.seed for run in part} for part in parts] == [{5, 1}, {9}, {2}]
    assert [len(part) for part in parts] == [4, 2, 2]
    once = recipe(seeds=[1, 2, 3])
    assert once.compare is not None
    assert [len(part) for part in stretches(once.compare, runs(once))] == [6]


@pytest.mark.parametrize("looks", [[3, 6], [6, 3, 12], [3, 3, 12], [1, 12], [3, 12, 24]])
def test_looks_that_cannot_be_taken_are_refused(looks):
    said = f"compare.looks is {looks}; expected numbers of seeds from 2 on that rise to all 12"
    refuses(re.escape(said), recipe, seeds=list(range(12)), looks=looks)


def test_a_search_that_chooses_its_runs_has_no_looks():
    with pytest.raises(UserError, match=r"write search = \"grid\", or no looks"):
        recipe(seeds=[1, 2, 3, 4], looks=[2, 4], search="optuna", learning_rates=[1e-4, 1e-2])


def content(*words: str, claims: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "rows": [{"verdict": word} for word in ("baseline", *words)],
        "claims": [{"verdict": word} for word in claims],
    }


def test_a_comparison_stops_when_every_arm_and_every_claim_has_its_word():
    assert is_decided(content("better", "identical", claims=("fails",)))
    assert not is_decided(content("better", "not distinguishable"))
    assert not is_decided(content("better", claims=("holds", "not decided")))
    assert not is_decided(content("diverged"))


@pytest.mark.full
def test_larger_effects_take_fewer_runs_and_none_takes_all():
    section = recipe(seeds=list(range(12)), looks=[3, 6, 12]).compare
    found = expected_runs(section, 4)
    assert 48 >= found[0.0] > 46 and found[0.0] > found[2.0] > found[4.0] >= 12
    (said,) = describe_looks(section, 4)
    assert "looks at 3, 6, 12 seeds" in said and "of 48 at most" in said
    plain = recipe(seeds=[1, 2, 3]).compare
    assert plain is not None and describe_looks(plain, 4) == []


@pytest.mark.full
def test_what_a_look_decides_is_not_run_on(tmp_path, cache):
    """An arm that is the baseline is identical at the first look: half of the runs are spared."""
    arms = ["llama", {"name": "same", "variant": "llama"}]
    looks = {"arms": arms, "seeds": [1, 2, 3, 4], "looks": [2, 4], "lockstep": True}
    found = compare({**SMALL, "compare": looks}, out=tmp_path, progress=False)
    assert {run["seed"] for run in found.content["runs"]} == {1, 2}
    row = found.row("same")
    assert row["verdict"] == "identical" and row["missing"] == []
    assert any("this is the one at 2 of at most 4" in one for one in found.content["remarks"])


@pytest.mark.full
def test_a_look_is_taken_at_the_runs_of_the_recipe_alone(tmp_path, cache):
    section = {"arms": ["llama", {"name": "same", "variant": "llama"}], "seeds": [1, 2]}
    looks = {**section, "seeds": [1, 2, 3], "looks": [2, 3], "lockstep": True}
    older = {**SMALL, "compare": {**section, "lockstep": True}, "train": {"max_steps": 3}}
    compare(older, out=tmp_path, progress=False)
    found = compare({**SMALL, "compare": looks}, out=tmp_path, progress=False)
    assert {run["seed"] for run in found.content["runs"]} == {1, 2}
