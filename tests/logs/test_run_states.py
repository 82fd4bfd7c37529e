"""Runs of which a tracker says that they have not come to their end."""

import pytest

import layerlab
from layerlab import UserError
from tests.logs.written import put, read


@pytest.mark.parametrize("column", ["State", "status", "run_state"])
@pytest.mark.parametrize("word", ["running", "crashed", "FAILED", "Timed out", "node-fail"])
def test_a_run_that_has_not_ended_is_left_out(tmp_path, column, word):
    rows = [
        f"{arm},{seed},{word if (arm, seed) == ('wide', 3) else 'finished'},{3 + seed / 9 + gain}"
        for arm, gain in (("plain", 0.0), ("wide", 0.1))
        for seed in (1, 2, 3)
    ]
    path = put(tmp_path / "runs.csv", "\n".join([f"arm,seed,{column},eval_loss", *rows, ""]))
    assert [one.finished for one in read(path)] == [None] * 5 + [False]
    remarks = layerlab.judge(path).content["remarks"]
    told = "left out, because they have not finished, so that this is not final: wide, seed 3"
    assert any(one.startswith(told) for one in remarks)


def test_the_last_word_counts_and_others_say_nothing(tmp_path):
    rows = ["plain,1,10,running,3", "plain,1,20,done,2.5", "wide,1,10,warmup,3", "wide,1,20,,2"]
    path = put(tmp_path / "runs.csv", "\n".join(["arm,seed,step,status,loss", *rows, ""]))
    assert [one.finished for one in read(path)] == [None, None]


def test_a_ledger_waits_for_runs_that_go_on(tmp_path):
    folder = tmp_path / "own"
    layerlab.create_ledger(folder, baseline="plain")
    layerlab.add_idea(folder, "wide", says="wider", seeds=[1, 2])
    rows = [f"{arm},{seed},running,{3 + seed / 9}" for arm in ("plain", "wide") for seed in (1, 2)]
    path = put(tmp_path / "runs.csv", "\n".join(["arm,seed,state,loss", *rows, ""]))
    with pytest.raises(
        UserError, match=r"'plain' has no run with seed 1, 2 in these logs; .* have"
    ):
        layerlab.judge_idea(folder, "wide", path)
