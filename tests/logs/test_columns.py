"""Columns of tables: those without a number, and what is no number."""

import json
from datetime import datetime

import numpy as np
import pytest

from tests.logs.written import ROWS, put, read
from tests.support.refused import refuses

LOST = {
    "x.csv": "arm,seed,step,loss\na,1,10,3.5\nb,2,10,\nb,2,20,\n,,20,\n",
    "x.jsonl": '{"arm":"a","seed":1,"step":10,"loss":3.5}\n'
    '{"arm":"b","seed":2,"step":10,"loss":null}\n{"arm":"b","seed":2,"step":20,"lr":1}',
    "wandb.csv": "Step,a-s1 - loss,b-s2 - loss\n10,3.5,\n20,,\n",
    "mlflow.csv": "arm,seed,key,value,step\na,1,loss,3.5,10\nb,2,loss,,10\nb,2,lr,0.1,20\n",
}


@pytest.mark.parametrize("name", LOST)
def test_a_run_that_has_no_loss_ends_in_nan(name, tmp_path):
    one, two = read(put(tmp_path / name, LOST[name]))
    assert (one.arm, one.seed, one.losses.tolist()) == ("a", "1", [3.5])
    assert (two.arm, two.seed, two.steps.tolist()) == ("b", "2", [10, 20])
    assert np.isnan(two.losses).all() and not two.again


@pytest.mark.parametrize("word", ["NaN", "nan", "Inf"])
def test_lines_of_text_say_what_is_not_finite_in_any_letters(word, tmp_path):
    (found,) = read(put(tmp_path / "a.log", f"step 1: val loss 3.5\nstep 2: val loss {word}\n"))
    assert found.steps.tolist() == [1, 2] and not np.isfinite(found.losses[-1])


@pytest.mark.parametrize("order", ["utf-16", "utf-16-le", "utf-16-be"])
def test_a_table_that_a_spreadsheet_saved_in_utf16_is_read(order, tmp_path):
    text = "arm\tseed\tstep\tloss\ngröße\t1\t10\t3.5\n"
    mark = "" if order == "utf-16" else "\ufeff"
    (tmp_path / "x.tsv").write_bytes(f"{mark}{text}".encode(order))
    (found,) = read(tmp_path / "x.tsv")
    assert (found.arm, found.seed, found.losses.tolist()) == ("größe", "1", [3.5])
    (tmp_path / "x.tsv").write_bytes(f"\ufeff{text}".encode("utf-16-le")[:-1])
    refuses(r"cannot be read as a table in UTF-16: .* copy the", read, tmp_path / "x.tsv")


DAY = datetime(2024, 1, 1, 12, 30)


@pytest.mark.parametrize("column", ["step", "loss"])
@pytest.mark.parametrize(
    "value", [DAY, DAY.date(), DAY.time(), DAY - DAY, [1.0], {"a": 1.0}, b"\xff", True]
)
def test_a_column_of_something_else_than_numbers_is_one_line(column, value, tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.Table.from_pylist([{**ROWS[0], column: value}])
    parquet.write_table(table, tmp_path / "x.parquet")
    said = f"the column '{column}' of .*holds something else .*name another with --{column} COLUMN"
    refuses(said, read, tmp_path / "x.parquet")


@pytest.mark.parametrize("value", ["2024-01-01", "12:30:00", "2024-01-01T12:30:00Z", "true"])
def test_a_step_that_is_a_time_is_one_line_in_a_table_of_wandb_too(value, tmp_path):
    for text in (f"step,loss\n{value},1\n", f"Step,a-s1 - loss\n{value},1\n"):
        refuses(r"[sS]tep' of .* something else than numbers", read, put(tmp_path / "x.csv", text))


def test_what_steps_count_is_known(tmp_path):
    table = put(tmp_path / "a-s1.csv", "Epoch,tokens,loss\n1,10,3\n2,20,2\n")
    assert [one.step_name for one in read(table)] == ["tokens"]
    assert [one.step_name for one in read(table, step="Epoch")] == ["Epoch"]
    bare = put(tmp_path / "b-s1.csv", "loss\n3\n2\n")
    assert [one.step_name for one in read(bare)] == ["rows"]
    summed = put(tmp_path / "c-s1.csv", "step,train_loss,train_runtime\n9,3,60\n")
    assert [one.mean for one in (*read(summed), *read(table))] == [True, False]


def test_seeds_of_64_bits_stay_what_they_are(tmp_path):
    seeds = [2**53, 2**53 + 1, 2**64 - 1]
    rows = [{"arm": "plain", "seed": seed, "step": 10, "loss": 3.5} for seed in seeds]
    path = put(tmp_path / "runs.jsonl", "".join(json.dumps(one) + "\n" for one in rows))
    assert [one.seed for one in read(path)] == [str(one) for one in seeds]


def test_texts_are_no_arms_unless_somebody_says_so(tmp_path):
    cells = [(run, text) for run in ("a-s1", "a-s2") for text in ("train", "validation")]
    lines = [f"{run},{text},1,{3 + n}" for n, (run, text) in enumerate(cells)]
    path = put(tmp_path / "x.csv", "\n".join(["task,variant,iteration,value_loss", *lines]))
    said = "'variant' of .* holds 'train', 'validation', which name texts and no arms"
    refuses(said, read, path, seed="task")
    assert {one.arm for one in read(path, arm="variant", seed="task")} == {"train", "validation"}


def test_numbers_that_are_kept_as_words_are_none(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.table({name: [str(row[name]) for row in ROWS] for name in ("step", "loss")})
    parquet.write_table(table, tmp_path / "a-s1.parquet")
    assert [one.words for one in read(tmp_path)] == [()]
