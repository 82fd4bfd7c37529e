"""Twins beside the size of their source: orders, signs, and what is surely reversed."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from layerlab.records.parquet.folded_runs import unfold_runs
from layerlab.studies import twin_transfer
from layerlab.studies.engine.runner import study
from layerlab.studies.engine.statistics import Interval, tau
from layerlab.studies.twin_transfer import LONG, METHODS, PAIRS, PLAIN, SHORT, SOURCE, Size

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
NUMBERS = st.permutations([4.1, 4.2, 4.35, 4.4, 4.6, 4.75, 4.8, 5.0])


def judged(runs: Path = RESULTS, **settings: Any) -> Any:
    return study("twin-transfer", runs=runs, progress=False, threads=1, **settings)


def losses(means: list[float], noise: float, seeds: int = 3) -> Size:
    """Methods with these means; what is left of each seed is noise in turn."""
    found = {
        method: {
            seed: mean + 0.02 * seed + noise * (1 if (place * 5 + seed * 3) % 4 < 2 else -1)
            for seed in range(seeds)
        }
        for place, (method, mean) in enumerate(zip(METHODS, means, strict=True))
    }
    return Size(losses=found, parameters=1_400_000, tokens=300_000, updates=10)


@given(NUMBERS, NUMBERS)
def test_tau_is_scipys_and_of_a_reversed_order_its_negative(one, two):
    found = float(tau(np.array(one), np.array(two)))
    assert found == pytest.approx(kendalltau(one, two).statistic)
    back = float(tau(np.array(one), -np.array(two)))
    assert back == pytest.approx(-found)
    assert -1 <= found <= 1


@given(NUMBERS, st.sampled_from([1e-4, 0.4]))
def test_an_order_holds_against_itself_fails_against_another_and_chance_decides_neither(
    means, noise
):
    same, other = losses(means, noise), losses([9 - one for one in means], noise)
    for larger, word in ((same, "holds"), (other, "fails")):
        sure = twin_transfer.decided_pairs({"twin": same, SOURCE: larger})
        found = twin_transfer.Transfer(
            twin=same,
            source=larger,
            tau=Interval(0.0, 0.0, 0.0),
            sure=sure["twin"] & sure[SOURCE],
        )
        wanted = word if noise < 0.1 else "not decided"
        for verdict in (
            twin_transfer.judge_order(found, "c"),
            twin_transfer.judge_signs(found, "c"),
        ):
            assert verdict.word == wanted, verdict
            assert verdict.looked and "1.4 M parameters, 0.3 M tokens" in verdict.scale
            assert verdict.unit == "3 seeds of each method"
        largest = found.largest
        assert (largest is None) is (word == "holds")
        if word == "fails":
            assert len(found.reversed) == (len(PAIRS) if noise < 0.1 else 0)


@pytest.mark.full
def test_the_stored_runs_say_two_pairs_are_reversed():
    found = judged(fast=True)
    words = [one["word"] for one in found.verdicts]
    assert words == ["fails", "fails", "not decided", "not decided"]
    rows = found.frame("orders").set_index("updates of the twin")
    assert rows.loc[600, "tau"] == pytest.approx(8 / 28)
    assert rows.loc[150, "tau"] == pytest.approx(10 / 28)
    assert all(rows["low"] > 0) and all(rows["high"] < 0.8) and all(rows["reversed"] == 2)
    pairs = found.frame("pairs")
    assert len(pairs) == 3 * len(PAIRS)
    four = pairs[(pairs["method"] == "history-4") & (pairs["against"] == "history-1")]
    assert four["decided"].all() and set(four["nats"] > 0) == {True, False}
    # What stands on the page of the comparison stands here.
    content = json.loads((RESULTS / SOURCE / "comparison.json").read_text("utf-8"))
    stored = {one["arm"]: one["difference"] for one in content["rows"]}
    here = found.frame("methods").query("parameters > 50e6").set_index("method")["nats"]
    assert here.to_dict() == pytest.approx({arm: stored[arm] for arm in METHODS if arm != PLAIN})
    assert found.verdicts[0]["scale"] == (
        "1.4 M parameters, 1.2 M tokens, against 51.7 M parameters, 18.0 M tokens"
    )
    assert "hours" not in found.to_dict()["trainings"]
    assert found.to_dict()["recipe"]["text"] == "brown, corpus.txt"


def copied(runs: Path) -> Path:
    """The three recipes with their runs, in a folder where they may be changed."""
    for name in (LONG, SHORT, SOURCE):
        shutil.copytree(RESULTS / name, runs / name)
        unfold_runs(runs / name)
    return runs


def change_run(folder: Path, name: str, nats: float, **train: Any) -> None:
    """Make a run of another recipe of one, beside it."""
    place = folder.with_name(name)
    shutil.copytree(folder, place)
    manifest = json.loads((place / "manifest.json").read_text("utf-8"))
    manifest["recipe"]["train"] |= train
    (place / "manifest.json").write_text(json.dumps({**manifest, "run": name}))
    found = json.loads((place / "result.json").read_text("utf-8"))
    (place / "result.json").write_text(json.dumps({**found, "run": name, "nats": nats}))
    lines = (place / "events.jsonl").read_text("utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    last = max(at for at, one in enumerate(events) if one["kind"] == "evaluation")
    events[last]["nats"] = nats
    (place / "events.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in events))


@pytest.mark.full
def test_runs_of_another_recipe_in_the_folder_are_left_out_and_told(tmp_path):
    runs = copied(tmp_path)
    before = judged(runs, fast=True)
    for name in (LONG, SOURCE):
        for folder in sorted((runs / name / "runs").glob("llama-*")):
            # At another rate, and after the other in the order of names.
            change_run(folder, f"{folder.name}z", 9.0, rate=5e-4)
    after = judged(runs, fast=True)
    assert after.verdicts == before.verdicts
    told = [one for one in after.to_dict()["remarks"] if one not in before.to_dict()["remarks"]]
    assert len(told) == 2 and all("train.learning_rate is 0.0005 there" in one for one in told)
    assert told[0].startswith(f"{LONG}: ") and told[1].startswith(f"{SOURCE}: ")
    assert after.to_dict()["trainings"] == before.to_dict()["trainings"]
    assert after.to_dict()["key"] != before.to_dict()["key"]


@pytest.mark.full
def test_both_modes_say_the_same():
    assert judged(fast=True).verdicts == judged().verdicts


@pytest.mark.full
def test_where_runs_are_missing_nothing_is_decided_and_nothing_is_trained(tmp_path):
    found = judged(tmp_path)
    assert {one["word"] for one in found.verdicts} == {"not decided"} and len(found.verdicts) == 4
    said = found.verdicts[0]["said"]
    assert said.startswith(f"{LONG}, {SHORT}, {SOURCE}: no finished runs of all methods")
    assert "--runs docs/results" in said and not list(tmp_path.iterdir())
    copied(tmp_path)
    for file in (tmp_path / SOURCE / "runs").glob("history-7-s[12]*/result.json"):
        file.unlink()
    assert judged(tmp_path).verdicts[0]["said"].startswith(f"{SOURCE}: no finished runs")
