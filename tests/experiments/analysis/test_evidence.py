"""Speeds of runs that shared their device stand nowhere, and everything else of them does."""

import pytest

from layerlab import UserError
from layerlab.experiments.analysis.compare import compare_runs
from layerlab.experiments.analysis.evidence import SPEEDS
from tests.training.drawn import recipe, records

LOSSES = {"llama": {1: 3.0, 2: 3.3, 3: 3.1}, "gpt2": {1: 2.99, 2: 3.2895, 3: 3.0905}}


def test_a_mean_is_that_of_the_timed_runs_alone() -> None:
    plain = recipe()
    found = records(plain, LOSSES)
    for number, one in enumerate(found):
        assert one.result is not None
        one.result["seconds"] = 10.0 + number  # type: ignore[index]
    whole = compare_runs(plain, found).content
    part = compare_runs(recipe(timed=["llama-s1", "gpt2-s1", "gpt2-s3"]), found).content
    own = {"seconds", "tokens_per_second"}
    for before, after in zip(whole["rows"], part["rows"], strict=True):
        assert {k: v for k, v in after.items() if k not in own} == {
            k: v for k, v in before.items() if k not in own
        }
    times = {run["run"]: run["seconds"] for run in whole["runs"]}
    kept = {run["run"]: run["seconds"] for run in part["runs"] if "seconds" in run}
    assert {(name.split("-r")[0]) for name in kept} == {"llama-s1", "gpt2-s1", "gpt2-s3"}
    assert all(times[name] == seconds for name, seconds in kept.items())
    assert part["rows"][1]["seconds"] == pytest.approx(
        sum(seconds for name, seconds in kept.items() if name.startswith("gpt2")) / 2
    )
    for run in part["runs"]:
        assert set(SPEEDS) & set(run) in (set(), set(SPEEDS))
    for curve in part["curves"]:
        timed = curve["run"] in kept
        assert all((one is not None) is timed for one in curve["evaluation"]["seconds"])
        assert all(one is not None for one in curve["evaluation"]["nats"])
    (said,) = [one for one in part["remarks"] if "of speeds" in one]
    assert said.startswith("of speeds only those of llama-s1, gpt2-s1, gpt2-s3 count: the other")
    assert not [one for one in whole["remarks"] if "of speeds" in one]


def test_a_run_that_there_is_not_is_named() -> None:
    with pytest.raises(
        UserError,
        match=(
            r"compare\.timed has 'gpt2-s4', which is no run; did you mean 'gpt2-s3'\? expected "
            r'an arm and a seed: write timed = \["llama-s1"\]'
        ),
    ):
        recipe(timed=["llama-s1", "gpt2-s4"])
