"""Which runs of somebody's logs count, what is remarked on them, and what a page keeps of it."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import layerlab
from layerlab.experiments.log_values import JudgedStep
from layerlab.report.pages.comparison import save_comparison
from tests.experiments.test_judge_logs import judged, log, pair


@pytest.mark.full
def test_a_noisy_arm_is_as_unsure_as_its_own_differences():
    """Of somebody's arms nobody knows that they vary alike; what is pooled would be too sure."""
    draw, covered = np.random.default_rng(3), 0
    for _ in range(100):
        logs = [
            log(arm, seed, 3 + float(noise))
            for arm, sd in {"plain": 0.01, "deep": 0.01, "wide": 0.1}.items()
            for seed, noise in enumerate(draw.normal(0, sd, 3))
        ]
        row = next(one for one in judged(logs)["rows"] if one["arm"] == "wide")
        covered += row["low"] <= 0 <= row["high"]
    ends = [[one.losses[-1] for one in logs if one.arm == arm] for arm in ("wide", "plain")]
    assert row["p"] == pytest.approx(stats.ttest_rel(*ends).pvalue)
    # Of 95 %, fewer than 87 of 100 have a probability of 5e-4.
    assert covered >= 87


def test_runs_that_were_to_go_on_for_longer_are_remarked_on():
    """By what Trainer says of its plan: a schedule that ends later is another one."""
    logs = [replace(one, planned=100 if one.arm == "plain" else 200) for one in pair()]
    first, second = (one for one in judged(logs)["remarks"] if "updates" in one)
    assert "unlike numbers of updates, as a schedule has them: 100 (plain, seed 3), 200" in first
    assert "fewer updates than they were to make: wide, seed 0 (100 of 200), wide" in second


@pytest.mark.full
def test_an_earlier_look_at_another_step_is_disclosed(tmp_path):
    """Also once the page is judged at the same step again."""
    (tmp_path / "log.csv").write_text(
        "arm,seed,step,loss\n"
        + "".join(
            f"{arm},{seed},{step},{3 + seed / 7 + len(arm) * (1 + seed / 9 + step / 99) / 99}\n"
            for arm in ("plain", "wide")
            for seed in range(3)
            for step in (10, 20)
        )
    )
    for at, told in ((10, []), (20, ["10"]), (20, ["10"]), (10, ["20"])):
        found = layerlab.judge(tmp_path / "log.csv", at=at, out=tmp_path / "out").content
        said = [one for one in found["remarks"] if one.startswith("judged before at step")]
        assert [one.split()[4].rstrip(":") for one in said] == told


@pytest.mark.full
def test_steps_to_a_loss_stand_on_a_page_and_in_a_table(tmp_path):
    content = judged(pair(), JudgedStep(target=3.5))
    (row,) = content["measures"]
    assert [one["seed"] for one in row["seeds"]] == [0, 1, 2, 3]
    first = {name: row["seeds"][0][name] for name in ("value", "baseline", "difference")}
    assert first == pytest.approx({"value": 46, "baseline": 55, "difference": -9})
    assert save_comparison(content, tmp_path / "out").read_text("utf-8").count("steps:3.5")
    table = pd.read_csv(tmp_path / "out" / "tables" / "measures.csv")
    assert table["difference"].mean() == pytest.approx(row["difference"])
    # None of an arm comes there.
    content = judged(pair(), JudgedStep(target=1.0))
    save_comparison(content, tmp_path / "none")
    assert (
        list(pd.read_csv(tmp_path / "none" / "tables" / "measures.csv").columns)[-1] == "difference"
    )


def test_the_same_readings_are_one_run_wherever_its_logs_end():
    """Of a step that is given nothing counts behind it: neither does it make another run."""
    logs = [
        replace(one, seed=f"{number}", steps=one.steps[:end], losses=one.losses[:end])
        for arm, ends in (("plain", (3.0, 3.01)), ("wide", (2.0, 2.02)))
        for number, (one, end) in enumerate((log(arm, 1, x), n) for x in ends for n in (10, 7))
    ]
    found = judged(logs, JudgedStep(at=70))
    assert (found["rows"], found["seeds"]) == (judged(logs[::2], JudgedStep(at=70))["rows"], [0, 2])
    assert sum("so that they are no two runs" in one for one in found["remarks"]) == 4


def test_the_same_readings_twice_are_one_run():
    """Two runs of each arm, each of them there twice, are no four seeds."""
    losses = {"plain": (3.0, 3.01), "wide": (2.0, 2.02)}
    logs = [log(arm, seed, losses[arm][seed // 2]) for arm in losses for seed in range(4)]
    found = judged(logs)
    assert (found["rows"], found["seeds"]) == (judged([*logs[::2]])["rows"], [0, 2])
    assert sum("so that they are no two runs" in one for one in found["remarks"]) == 4
