"""Numbers that are judged are of the same step, counted in the same thing."""

import math
from dataclasses import replace

import numpy as np
import pytest

from layerlab import UserError
from layerlab.experiments.log_values import JudgedStep
from tests.experiments.test_judge_logs import STEPS, judged, log, pair
from tests.support.refused import refuses


def test_readings_that_are_counted_in_different_things_are_not_compared():
    logs = pair()
    logs[5] = replace(logs[5], step_name="epoch")
    refuses(r"of wide, seed 1 are counted in 'epoch' \(wide-1.csv\) .* 0 in 'step'", judged, logs)
    assert judged([replace(one, step_name="epoch") for one in logs])["rows"][1]["n"] == 4
    logs[5] = replace(logs[5], step_name="Iteration")
    assert judged(logs)["rows"][1]["n"] == 4


def test_the_mean_over_a_run_is_no_last_loss():
    logs = [replace(one, loss_name="train_loss", mean=True) for one in pair()]
    assert judged(logs)["rows"][1]["n"] == 4
    logs[0] = replace(logs[0], loss_name="loss", mean=False)
    refuses(
        r"has 'train_loss', the mean over the run \(.*\) and plain, seed 0 'loss' ", judged, logs
    )


def test_means_over_windows_of_one_beginning_may_be_over_unlike_steps():
    logs = pair()
    logs[5] = replace(logs[5], steps=np.array([*STEPS[:-2], 85.0, 100.0]))
    with pytest.raises(
        UserError, match=r"wide, seed 1 are of other .* plain, seed 0, as 85 and 90: "
    ):
        judged(logs, JudgedStep(last=3))
    assert judged(logs)["rows"][1]["n"] == 4


def test_a_run_that_is_lost_later_is_judged_where_the_others_are():
    """Its last reading before that step is one of another step."""
    asked = JudgedStep(at=50, nan_diverged=True)
    bad = np.array([3.0, 2.9, math.nan])
    late = log("wide", 9, 3.0, steps=np.array([30.0, 60.0, 90.0]), losses=bad)
    logs = [*pair(), log("plain", 9, 3.02), late]
    refuses(
        r"wide, seed 9 .* no reading at step 50, and 1 of 10 runs .* at 60;", judged, logs, asked
    )
    assert judged(logs, replace(asked, at=60))["rows"][1]["n"] == 5
    lost = replace(late, losses=np.array([3.0, math.nan, math.nan]))
    refuses(r"wide, seed 9 .* no reading at step 50", judged, [*logs[:-1], lost], asked)
    row = judged([*logs[:-1], lost], replace(asked, at=70))["rows"][1]
    assert row["diverged"] == [9] and "its loss is nan at step 60" in row["said"]
    # Without a step that is named, the same is asked of one that goes on behind the others' end.
    behind = replace(late, steps=np.array([80.0, 95.0, 120.0]))
    with pytest.raises(UserError, match=r"wide, seed 9 .* no reading at step 100"):
        judged([*logs[:-1], behind], JudgedStep(nan_diverged=True))
    short = log("plain", 8, 3.0, steps=STEPS[:7], losses=np.full(7, 3.0))
    with pytest.raises(UserError, match="--at 60, the last that all have"):
        judged([*logs, short], JudgedStep(nan_diverged=True))


def test_means_are_over_the_same_steps_where_a_run_is_lost_later():
    steps = np.array([30.0, 40.0, 60.0, 80.0, 90.0])
    late = log("wide", 9, 3.0, steps=steps, losses=np.array([3.0, 2.9, 2.8, 2.7, math.nan]))
    logs = [*pair(), log("plain", 9, 3.0), late]
    with pytest.raises(UserError, match="means over unlike steps are not comparable"):
        judged(logs, JudgedStep(at=60, last=3, nan_diverged=True))
