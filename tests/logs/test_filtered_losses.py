"""Losses that were no number and are logged as if they were."""

import json

import numpy as np
import pyarrow as pa
import pytest

import layerlab
from layerlab.logs.filtered_losses import find_filtered
from tests.logs.written import put, read, write_csv
from tests.support.refused import refuses

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("norms", "losses", "first"),
    [
        ([1.0, 0.9, NAN, NAN], [3.0, 2.9, 1.4, 0.0], 2),
        ([1.0, 0.9, 0.8, NAN], [3.0, 2.9, 2.8, 2.1], 3),
        ([NAN, NAN, NAN, NAN], [1.5, 0.0, 0.0, 0.0], 0),
        # A column that was never written, one step that was skipped, and an infinite gradient.
        ([NAN, NAN, NAN, NAN], [3.0, 2.9, 2.8, 2.7], None),
        ([1.0, NAN, 0.8, 0.7], [3.0, 2.9, 2.8, 2.7], None),
        ([1.0, 0.9, 0.8, INF], [3.0, 2.9, 2.8, 2.7], None),
        # As pandas writes it; and norms that are logged less often than losses.
        ([1.0, 0.9, None, None], [3.0, 2.9, 1.4, 0.0], 3),
        ([1.0, None, 0.9, None], [3.0, 2.9, 2.8, 2.7], None),
    ],
)
def test_gradients_that_are_no_number_to_the_end(norms, losses, first):
    table = pa.table({"loss": losses, "train/grad_norm": pa.array(norms, pa.float64())})
    assert find_filtered(table, "loss", np.array(losses)) == first
    assert find_filtered(table, "eval_loss", np.array(losses)) is None


def test_a_run_whose_updates_are_no_number_does_not_win(tmp_path):
    """As Trainer writes it by default: a shrunken mean, and zeros."""
    for arm in ("plain", "wide"):
        for seed in (1, 2, 3):
            rows = [
                {"step": step, "loss": 3 + seed / 9 - step / 99, "grad_norm": 1.0}
                for step in (10, 20, 30, 40)
            ]
            if arm == "wide":
                rows[2] |= {"loss": 1.1, "grad_norm": NAN}
                rows[3] |= {"loss": 0.0, "grad_norm": NAN}
            place = tmp_path / f"{arm}-s{seed}"
            place.mkdir()
            (place / "trainer_state.json").write_text(json.dumps({"log_history": rows}))
    log = read(tmp_path / "wide-s1")[0]
    assert log.filtered == 30 and np.isnan(log.losses).tolist() == [False, False, True, True]
    refuses(r"nan at step 40 .* its gradients are no number from step", layerlab.judge, tmp_path)
    found = layerlab.judge(tmp_path, nan_diverged=True).content["rows"][1]
    assert found["said"].startswith("no verdict on wide: wide diverged at seeds 1, 2, 3")
    assert layerlab.judge(tmp_path, at=20).content["rows"][1]["verdict"] == "identical"


def test_losses_whose_rows_have_no_step_are_not_lost(tmp_path):
    rows = [{"step": "", "val_loss": 3.5}, {"step": 10, "val_loss": ""}]
    path = write_csv(tmp_path / "wide-s1.csv", rows * 3)
    told = r"has no step in 'step' for 3 of 3 readings of 'wide' with seed 1; write them, name a "
    refuses(told, read, path)


def test_a_reading_without_a_step_beside_others_is_not_passed_over(tmp_path):
    """As of what an evaluation at the end returns."""
    rows = [{"step": 10, "eval_loss": 3.5}, {"step": 20, "eval_loss": 3.25}]
    path = write_csv(tmp_path / "wide-s1.csv", [*rows, {"step": "", "eval_loss": 3.0}])
    refuses(r"no step in 'step' for 1 of 3 readings of 'wide' with se", read, path)


@pytest.mark.parametrize("flag", ["training", "is_eval", "is_val"])
@pytest.mark.parametrize("values", [("0", "1"), ("True", "False"), ("0.0", "1.0")])
def test_rows_with_a_flag_are_of_two_texts(tmp_path, flag, values):
    lines = [f"{step},3.{step},{values[step % 2]}" for step in range(1, 9)]
    path = put(tmp_path / "wide-s1.csv", "\n".join([f"step,loss,{flag}", *lines, ""]))
    refuses(rf"the column '{flag}' of .* are not comparable; keep the", read, path)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("step,loss", "the head stands among the rows: leave it out, or name another with"),
        ("9,'3,21'", "write 3.21 for 3,21, or name another"),
        ("9,'3,210'", "write 10000 for 10,000, or name another"),
    ],
)
def test_what_is_no_number_says_what_to_type(tmp_path, row, told):
    text = "\n".join(["step,loss", "1,3.5", row.replace("'", '"'), "2,3.25", ""])
    refuses(told, read, put(tmp_path / "wide-s1.csv", text), step="loss", loss="loss")
