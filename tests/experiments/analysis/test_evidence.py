"""Speeds of runs that shared their device stand nowhere, and everything else of them does."""

from dataclasses import replace

import pytest

from layerlab.experiments.analysis.compare import compare_runs
from layerlab.experiments.analysis.evidence import SPEEDS
from layerlab.records.run import SHARED
from tests.support.refused import refuses
from tests.training.support.drawn import recipe, records

LOSSES = {"llama": {1: 3.0, 2: 3.3, 3: 3.1}, "gpt2": {1: 2.99, 2: 3.2895, 3: 3.0905}}


def test_a_mean_is_that_of_the_timed_runs_alone():
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


def test_a_run_that_says_that_it_shared_its_device_has_no_speed():
    """Neither a time, nor an axis by it, nor what matching by time has left."""
    plain = recipe(match="time")
    found = records(plain, LOSSES)
    assert all(one.result is not None for one in found)
    shared = [replace(one, manifest={**one.manifest, SHARED: True}) for one in found]
    said = "6 of 6 runs shared their device with others: their seconds and tokens per second are"
    before, after = (compare_runs(plain, each).content for each in (found, shared))
    assert before["rows"][1]["seconds"] == 10 and before["rows"][1]["mismatch"] == 0
    for old, new in zip(before["rows"], after["rows"], strict=True):
        assert {**old, **dict.fromkeys((*SPEEDS, "mismatch"))} == new
    for curve in after["curves"]:
        for kind in ("train", "evaluation"):
            assert set(curve[kind]["seconds"]) == {None} and None not in curve[kind]["tokens"]
    assert [one for one in after["remarks"] if one.startswith(said)]
    assert not [one for one in before["remarks"] if "shared their device" in one]
    # An unfinished one has no axis by time, either, and naming a run does not unshare it.
    halves = [replace(one, result=None) for one in shared[:1]] + found[1:3] + shared[3:]
    part = compare_runs(recipe(timed=["gpt2-s1", "gpt2-s2"]), halves).content
    timed = [one["run"] for one in part["curves"] if one["train"]["seconds"][0] is not None]
    assert [name.split("-r")[0] for name in timed] == ["gpt2-s1"]


def test_runs_that_shared_their_device_are_compared_with_those_that_did_not():
    plain = recipe()
    first, *others = records(plain, LOSSES)
    shared = replace(first, manifest={**first.manifest, SHARED: True})
    silent = [replace(others[0], manifest={**others[0].manifest, SHARED: False}), *others[1:]]
    content = compare_runs(plain, [shared, *silent]).content
    assert [row["n"] for row in content["rows"]] == [3, 3]
    assert content["rows"][0]["seconds"] == 10  # of the two that had it to themselves
    assert any(one.startswith("1 of 6 runs shared") for one in content["remarks"])


def test_a_run_that_there_is_not_is_named():
    refuses(
        r"compare\.timed has 'gpt2-s4', which is no run; did you mean 'gpt2-s3'\? expected "
        r'an arm and a seed: write timed = \["llama-s1"\]',
        recipe,
        timed=["llama-s1", "gpt2-s4"],
    )
