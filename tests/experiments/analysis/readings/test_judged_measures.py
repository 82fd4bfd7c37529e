"""Verdicts beside the loss: steps to a loss, also where it is not reached, and monitors."""

import io
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console
from scipy import stats

from layerlab.experiments.analysis.compare import compare_runs
from layerlab.experiments.analysis.readings.run_readings import (
    explain_unreached,
    read_runs,
    unit_of,
)
from layerlab.experiments.statistics.multiple_comparisons import holm
from layerlab.recipes.training import TrainingRecipe
from layerlab.records.run import RunRecord
from layerlab.report.i18n.language import language
from layerlab.report.pages.comparison import render
from tests.training.support.drawn import recipe, record, records, runs

SEEDS = [1, 2, 3, 4]
SAME = dict(zip(SEEDS, (3.0, 3.3, 3.1, 3.2), strict=True))


def curved(one: RunRecord, losses: Mapping[int, float]) -> RunRecord:
    """The same run with these evaluations."""
    events = tuple(
        {"kind": "evaluation", "update": update, "nats": loss, "bits_per_byte": loss / 2}
        for update, loss in losses.items()
    )
    return replace(one, events=events)


def made(given: TrainingRecipe, reach: Mapping[str, Mapping[int, float]]) -> list[RunRecord]:
    """Runs that come down from 10 nats in a straight line, to 2 at the update that is given."""
    return [
        curved(
            record(run, SAME[run.seed]),
            {0: 10.0, 1000: 10.0 - 8.0 * 1000 / reach[run.arm][run.seed]},
        )
        for run in runs(given)
    ]


def judged(given: TrainingRecipe, found: list[RunRecord]) -> Any:
    return compare_runs(given, found)


def test_steps_lie_between_two_evaluations():
    given = recipe(seeds=[1])
    (one, *_) = records(given, {"llama": {1: 2.0}, "gpt2": {1: 2.0}})
    found = curved(one, {0: 6.0, 100: 4.0, 200: 2.0, 300: 3.0})
    for loss, steps in ((3.0, 150.0), (4.0, 100.0), (7.0, 0.0), (2.0, 200.0)):
        assert read_runs(f"steps:{loss}", {1: found}, "nats") == {1: steps}
    assert read_runs("steps:1.5", {1: found}, "bits_per_byte") == {1: 150.0}
    assert read_runs("steps:1.9", {1: found}, "nats") == {}
    assert explain_unreached("steps:1.9", {1: found}, "nats") == {
        1: "not below 1.9 nats in 30 updates"
    }
    assert explain_unreached("spikes", {1: found}, "nats") == {}


def test_a_loss_that_was_reached_by_the_first_evaluation_is_remarked_on():
    given = recipe(seeds=[1, 2], measures=["steps:4"])
    # One that begins there has taken no step to it, and that is known.
    first = {("gpt2", 2): {100: 3.0}, ("llama", 1): {0: 3.0}}
    found = [
        curved(one, {**first.get((one.arm, one.seed), {100: 5.0}), 200: 2.0})
        for one in records(given, {"llama": SAME, "gpt2": SAME})
        if one.seed < 3
    ]
    (told,) = (one for one in judged(given, found).content["remarks"] if "first evaluation" in one)
    assert told.startswith(
        "steps:4 was reached by the first evaluation already, at seeds of gpt2 2: "
    )


@pytest.mark.full
def test_an_arm_that_is_sooner_is_told_with_its_interval_in_one_family():
    reach = {
        "llama": dict(zip(SEEDS, (1000.0, 1010.0, 1020.0, 990.0), strict=True)),
        "gpt2": dict(zip(SEEDS, (800.0, 815.0, 810.0, 790.0), strict=True)),
    }
    given = recipe(seeds=SEEDS, measures=["steps:4"])
    found = judged(given, made(given, reach))
    (row,) = found.content["measures"]
    # A straight line from 10 to 2 is at 4 after three quarters of the way.
    gaps = [0.75 * (reach["gpt2"][seed] - reach["llama"][seed]) for seed in SEEDS]
    assert row["difference"] == pytest.approx(sum(gaps) / 4) and row["n"] == 4
    assert row["mean"] == pytest.approx(0.75 * sum(reach["gpt2"].values()) / 4)
    p = float(stats.ttest_1samp(gaps, 0).pvalue)
    assert row["p"] == pytest.approx(p)
    # One family: the same losses at every seed have a p of 1.
    assert found.content["tests"] == 2 and row["holm"] == pytest.approx(holm([p, 1.0])[0])
    assert row["verdict"] == "smaller" and found.row("gpt2")["verdict"] == "identical"
    assert row["said"].startswith("steps:4 of gpt2 is smaller than that of llama by 150.9 updates")
    out = io.StringIO()
    Console(file=out, width=400).print(found.table(400))
    assert row["said"] in " ".join(out.getvalue().split())
    assert "Beside the loss" in render(found.content) and "steps:4 of gpt2" in render(found.content)


def test_runs_that_never_come_so_far_speak_against_their_arm():
    many = list(range(1, 9))
    losses = {seed: 3.0 + seed / 100 for seed in many}
    given = recipe(seeds=many, measures=["steps:3"])
    found = []
    for run in runs(given):
        end = 2.0 if run.arm == "llama" else 1.5 if run.seed == 1 else 5.0
        found.append(curved(record(run, losses[run.seed]), {0: 10.0, 1000: end}))
    (row,) = judged(given, found).content["measures"]
    # Seven of eight against none: Fisher's exact test, and one pair tells nothing beside it.
    p = float(stats.fisher_exact([[7, 1], [0, 8]]).pvalue)
    assert row["verdict"] == "larger" and 2 * p < 0.05
    assert row["said"].startswith(
        "steps:3 of gpt2 is larger than that of llama: 7 of 8 runs against 0 of 8 without one, "
        f"Fisher's exact p = {p:.2g} (gpt2: not below 3 nats in 30 updates); over the seeds left "
        "(1) it is -51.4706 updates; at "
    )
    assert row["lost"] == many[1:]
    chinese = language("zh").translate(row["said"])
    assert chinese.startswith(
        "gpt2 的 steps:3 比 llama 的更大：8 次运行中有 7 次没有该值，对照为 8 次"
    )


def test_a_sentence_with_its_interval_is_whole_in_chinese():
    said = (
        "steps:3 of gpt2 is larger than that of llama by 12.5 updates (95 % interval +1.0 to "
        "+24.0, p = 0.031, 3 seeds); at 1.00 k parameters and 1.92 k tokens a run."
    )
    assert language("zh").translate(said).startswith("gpt2 的 steps:3 比 llama 的更大 12.5 ")


def test_what_an_early_look_decided_is_of_all_seeds_that_have_finished():
    many = list(range(1, 7))
    reach = {
        "llama": {seed: 1000.0 + 3 * seed for seed in many},
        "gpt2": {seed: 500.0 + 2 * seed for seed in many},
    }
    given = recipe(seeds=many, looks=[3, 6], measures=["steps:4"])
    found = [
        curved(record(run, 3.0), {0: 10.0, 1000: 10.0 - 8000.0 / reach[run.arm][run.seed]})
        for run in runs(given)
    ]
    (row,) = judged(given, found).content["measures"]
    assert row["verdict"] == "smaller" and row["n"] == 3 and row["missing"] == []
    assert "decided by the look at 3 seeds; over 6 seeds it is" in row["said"]
    assert "not final" not in row["said"]
    assert row["mean"] == pytest.approx(0.75 * sum(reach["gpt2"].values()) / 6)


def test_what_was_read_before_a_run_diverged_is_no_reading_of_it():
    many = list(range(1, 6))
    given = recipe(seeds=many, measures=["steps:4"])

    def ended(lost: tuple[str, ...]) -> list[RunRecord]:
        losses = {0: 10.0, 1000: 2.0}
        return [
            curved(
                record(run, math.nan if run.arm in lost else 3.0),
                {update: loss - run.seed / 50 for update, loss in losses.items()},
            )
            for run in runs(given)
        ]

    (row,) = judged(given, ended(("llama", "gpt2"))).content["measures"]
    assert row["n"] == 0 and row["mean"] is None and row["lost"] == many
    assert row["verdict"] == "diverged" and row["said"].startswith("no verdict on steps:4")
    (row,) = judged(given, ended(("gpt2",))).content["measures"]
    assert row["n"] == 0 and row["mean"] is None and row["against_mean"] is not None
    assert row["verdict"] == "larger" and "over the seeds left" not in row["said"]


def test_an_arm_whose_loss_is_not_known_in_the_unit_has_not_failed_to_reach_it():
    arms = ["llama", {"name": "gpt2", "variant": "gpt2", "set": {"data.vocab_size": 500}}]
    given = recipe(*arms, seeds=SEEDS, allowed_differences=["data.*"], measures=["steps:1.8"])
    found = [
        record(run, SAME[run.seed], bits_per_byte=None if run.arm == "gpt2" else 1.0)
        for run in runs(given)
    ]
    unknown = [
        replace(one, events=tuple({**event, "bits_per_byte": None} for event in one.events))
        if one.arm == "gpt2"
        else one
        for one in found
    ]
    (row,) = judged(given, unknown).content["measures"]
    assert row["verdict"] == "no verdict" and row["lost"] == []


def test_a_sweep_that_lacks_a_run_is_judged_without_its_seed():
    given = recipe(seeds=[1, 2, 3, 4], learning_rates=[1e-3, 2e-3, 4e-3], measures=["steps:0.1"])
    found = [record(run, SAME[run.seed] + abs(run.rate - 2e-3)) for run in runs(given)]
    left = [one for one in found if (one.arm, one.seed, one.rate) != ("gpt2", 3, 2e-3)]
    (row,) = judged(given, left).content["measures"]
    assert "no verdict" in row["said"] and 3 in row["missing"]


def test_peaks_are_the_largest_of_a_monitors_readings():
    given = recipe(seeds=[1])
    (one, *_) = records(given, {"llama": {1: 2.0}, "gpt2": {1: 2.0}})
    rows = [
        {
            "kind": "monitor",
            "update": update,
            "readings": [
                {"measure": "score", "layer": layer, "head": 0, "value": value},
                {"measure": "entropy", "layer": layer, "head": 0, "value": 99.0},
            ],
        }
        for update, layer, value in ((10, 0, 3.0), (20, 1, 7.5), (30, 0, None))
    ]
    watched = replace(one, events=tuple(rows))
    assert read_runs("peak:score", {1: watched}, "nats") == {1: 7.5}
    assert read_runs("peak:stream_norm", {1: watched}, "nats") == {}
    assert unit_of("peak:score") == "in score" and unit_of("steps:2") == "updates"


def test_without_a_reading_there_is_no_verdict_and_one_seed_is_too_few():
    given = recipe(seeds=[1, 2], measures=["steps:0.1"])
    (row,) = judged(given, records(given, {"llama": SAME, "gpt2": SAME})).content["measures"]
    assert row["verdict"] == "diverged" or row["verdict"] == "no verdict"
    assert row["said"].startswith("no verdict on steps:0.1 of gpt2 and llama: no seed has it")
    single = recipe(seeds=[1], measures=["steps:3.5"])
    (row,) = judged(single, records(single, {"llama": SAME, "gpt2": SAME})).content["measures"]
    assert (row["n"] == 1 and "no verdict" in row["said"]) or "is that of" in row["said"]
