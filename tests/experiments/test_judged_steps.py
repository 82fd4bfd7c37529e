"""Steps to a loss in the logs of other trainers, also of runs that never come to it."""

import numpy as np
import pytest

from layerlab.experiments.log_values import JudgedStep
from tests.experiments.test_judge_logs import STEPS, judged, log


def test_steps_to_a_loss_count_those_that_never_reach_it():
    ends = {"plain": 3.0, "wide": 4.0}
    logs = [log(arm, n, ends[arm] + n / 1e6) for arm in ends for n in range(6)]
    (row,) = judged(logs, JudgedStep(target=3.5))["measures"]
    assert row["verdict"] == "larger" and row["lost"] == list(range(6))
    assert row["against_mean"] == pytest.approx(55.0, abs=1e-3)


@pytest.mark.parametrize(
    ("step", "unit"), [("epoch", "epoch"), ("tokens", "tokens"), ("Step", "updates")]
)
def test_steps_to_a_loss_are_in_what_a_log_counts(step, unit):
    ends = {"plain": 3.0, "wide": 3.2, "never": 4.0}
    logs = [
        log(arm, n, end + n / (91 if arm == "wide" else 97), steps=STEPS / 40, step_name=step)
        for arm, end in ends.items()
        for n in range(4)
    ]
    wide, never = judged(logs, JudgedStep(target=3.5))["measures"]
    assert wide["unit"] == unit and f" {unit} (95 % interval" in wide["said"]
    assert f"not below 3.5 in loss in 2.5 {unit})" in never["said"]


def test_seeds_that_are_left_are_not_said_to_be_none():
    ends = {"plain": [3.0, 3.1, 4.0], "wide": [3.2, 3.0, 3.1]}
    logs = [log(arm, n, end) for arm, own in ends.items() for n, end in enumerate(own)]
    (row,) = judged(logs, JudgedStep(target=3.5))["measures"]
    assert row["verdict"] == "diverged" and "over the seeds left (2) it is" in row["said"]
    assert row["said"].startswith("no verdict on steps:3.5 of wide and plain: 0 of 3 runs against")


def test_arms_whose_runs_are_left_at_other_seeds_are_not_said_to_share_none():
    left = {"plain": (1, 2), "wide": (3, 4)}
    logs = [
        log(arm, n, (3.0 if n in own else 4.0) + n / 1e3)
        for arm, own in left.items()
        for n in (1, 2, 3, 4)
    ]
    (row,) = judged(logs, JudgedStep(target=3.5))["measures"]
    assert row["n"] == 2 and "2 seeds, unpaired: no seed has a number for both" in row["said"]


def test_each_value_stands_below_its_own_seed_where_arms_have_unlike_ones():
    seeds = {"plain": (1, 2), "early": (1, 2, 7), "late": (2, 5)}
    logs = [log(arm, n, 3.0 + n / 1e3) for arm, own in seeds.items() for n in own]
    found = judged(logs, JudgedStep(target=3.5))
    rows = [[(at["seed"], at["value"] is None) for at in row["seeds"]] for row in found["measures"]]
    assert rows[0] == [(1, False), (2, False), (5, True), (7, False)]
    assert rows[1] == [(1, True), (2, False), (5, False), (7, True)]


def test_steps_to_a_loss_are_those_of_all_readings_though_a_picture_shows_fewer():
    steps = np.arange(1.0, 5001.0)
    logs = [
        log(arm, n, 0, steps=steps, losses=5.0 - steps / 5000 + off)
        for arm, off in (("plain", 0.0), ("wide", 0.001))
        for n in range(2)
    ]
    content = judged(logs, JudgedStep(target=4.4999))
    assert content["measures"][0]["against_mean"] == pytest.approx(2500.5, abs=1e-6)
    assert len(content["curves"][0]["train"]["loss"]) <= 402
