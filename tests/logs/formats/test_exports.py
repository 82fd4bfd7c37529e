"""Tables as W&B and MLflow export them."""

import math

import pytest

from tests.logs.written import LOSSES, ROWS, check, put, read, write_csv


def test_wandb_gives_a_column_to_each_run(tmp_path):
    rows = [
        {
            "Step": row["step"],
            **{
                f"{run} - eval/loss{end}": row["loss"]
                for run in ("plain-s1", "wide-s1")
                for end in ("", "__MIN", "__MAX")
            },
        }
        for row in ROWS
    ]
    one, two = read(write_csv(tmp_path / "wandb_export.csv", rows))
    check(one, "plain", "1")
    check(two, "wide", "1")


@pytest.mark.parametrize(("yes", "no"), [("1", "0"), ("True", "False"), ("t", "f")])
def test_what_is_no_number_in_mlflow_is_not_zero(yes, no, tmp_path):
    rows = [
        {"key": "loss", "value": row["loss"], "step": row["step"], "is_nan": no} for row in ROWS
    ]
    rows[-1] |= {"value": 0, "is_nan": yes}
    (found,) = read(write_csv(tmp_path / "a-s1.csv", rows))
    assert found.losses[:-1].tolist() == LOSSES[:-1] and math.isnan(found.losses[-1])


def test_mlflow_gives_a_row_to_each_metric(tmp_path):
    rows = [
        {"run_id": run, "key": key, "value": value, "timestamp": 1, "step": row["step"]}
        for run in ("one", "two")
        for row in ROWS
        for key, value in (("eval_loss", row["loss"]), ("lr", 0.1))
    ]
    found = read(write_csv(tmp_path / "history.csv", rows), arm="run_id")
    for log, arm in zip(found, ("one", "two"), strict=True):
        check(log, arm, None)


def test_a_table_of_wandb_may_have_several_steps(tmp_path):
    table = put(tmp_path / "x.csv", "Step,_timestamp,wide-s1 - val/loss\n10,1700,3.5\n")
    for columns in ({}, {"step": "Step"}):
        (found,) = read(table, **columns)
        assert (found.arm, found.seed, found.steps.tolist()) == ("wide", "1", [10])
