"""Logs of every kind, each written by the program whose kind it is, and read as what it says."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import layerlab
from layerlab import UserError
from layerlab.logs.configuration import read_configuration
from layerlab.logs.read import find_logs, read_logs
from layerlab.logs.training_log import LogColumns
from tests.logs.written import ROWS, check, put, read, write_csv
from tests.support.refused import refusal, refuses
from tests.training.support.drawn import recipe, record, runs, write


@pytest.mark.parametrize("between", [",", ";", "\t"])
def test_a_table_of_one_run_is_named_by_its_path(between, tmp_path):
    (found,) = read(write_csv(tmp_path / "plain-s3.csv", ROWS, between))
    check(found, "plain", "3")
    assert found.loss_name == "loss"


def test_columns_tell_runs_apart(tmp_path):
    rows = [{"what": arm, "n": n, **row} for arm in "ab" for n in (1, 2) for row in ROWS]
    found = read(write_csv(tmp_path / "all.csv", rows), arm="what", seed="n")
    assert [(one.arm, one.seed) for one in found] == [
        ("a", "1"),
        ("a", "2"),
        ("b", "1"),
        ("b", "2"),
    ]
    for one in found:
        check(one, one.arm, one.seed)


def test_jsonl_and_parquet_say_the_same(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    # A row of something else, as a summary at the end, is no reading.
    lines = [*ROWS, {"step": 30, "runtime": 3.2, "args": {"lr": 1}}]
    (tmp_path / "a-s1.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "b-s1.jsonl").write_text("\n".join(map(json.dumps, [*lines, {"loss": None}])))
    parquet.write_table(pa.Table.from_pylist(ROWS), tmp_path / "c-s1.parquet")
    for one, arm in zip(read(tmp_path), "abc", strict=True):
        check(one, arm, "1")


def test_parquet_keeps_words_of_several_groups(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    rows = [{"arm": arm, "seed": n, **row} for arm in "ab" for n in (1.0, None) for row in ROWS]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet", row_group_size=5)
    found = read(tmp_path)
    for one, (arm, seed) in zip(found, [(a, n) for a in "ab" for n in ("1", None)], strict=True):
        check(one, arm, seed)


def test_a_gap_among_the_seeds_of_a_parquet_file_is_no_seed(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.table({"arm": ["a"], "seed": pa.array([math.nan]), "loss": [3.0]})
    parquet.write_table(table, tmp_path / "x.parquet")
    assert [one.seed for one in read(tmp_path)] == [None]


def test_event_files_of_tensorboard(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path / "plain" / "seed_2")) as writer:
        for row in ROWS:
            writer.add_scalar("val/loss", row["loss"], row["step"])
            writer.add_scalar("lr", 1e-3, row["step"])
    (found,) = read(tmp_path)
    check(found, "plain", "2")


def test_a_run_of_ours_is_read_without_its_text(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("A text of some words and more.\n\n" * 200)
    settings = {
        "data.sources": [{"text": str(text)}],
        "train.max_steps": 2,
        "evaluate.eval_steps": 1,
        "data.vocab_size": 260,
    }
    made = layerlab.train("smoke", settings=settings, out=tmp_path / "runs", progress=False)
    text.unlink()
    (found,) = read(tmp_path / "runs")
    assert found.losses[-1] == made.result["nats"] and found.steps[-1] == 2
    assert found.config["train.max_steps"] == 2


def test_what_add_hparams_leaves_is_no_run(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path / "plain-s1" / "validation")) as writer:
        for row in ROWS:
            writer.add_scalar("loss", row["loss"], row["step"])
        writer.add_hparams({"lr": 0.1}, {"hparam/loss": 3.0})
    (found,) = read(tmp_path)
    check(found, "plain", "1")


def test_a_table_need_not_be_in_utf8(tmp_path):
    table = tmp_path / "x.csv"
    table.write_bytes("arm,seed,step,loss\nä,1,10,3.5\n".encode("latin-1"))
    (found,) = read(table)
    assert found.arm == "ä"


@pytest.mark.parametrize("arms", [["2.1", "2.10"], ["01", "1"], ["2024-01-01"], ["true"]])
def test_names_that_look_like_numbers_are_names(arms, tmp_path):
    rows = [{"arm": arm, "seed": "3.0", "step": 1, "loss": 3.5} for arm in arms]
    found = read(write_csv(tmp_path / "x.csv", rows))
    assert [(one.arm, one.seed) for one in found] == [(arm, "3") for arm in arms]
    rows = [{"What": arm, "n": "07", "step": 1, "loss": 3.5} for arm in arms]
    found = read(write_csv(tmp_path / "y.csv", rows), arm="What", seed="n")
    assert [(one.arm, one.seed) for one in found] == [(arm, "07") for arm in arms]


def test_a_name_keeps_what_stands_behind_its_points(tmp_path):
    for name in ("attn.rope", "attn.alibi"):
        write_csv(tmp_path / f"{name}.csv", ROWS)
    assert [one.arm for one in read(tmp_path)] == ["attn.alibi", "attn.rope"]


def test_a_log_is_read_once_whatever_leads_to_it(tmp_path):
    log = write_csv(tmp_path / "a" / "plain.csv", ROWS)
    (tmp_path / "link.csv").symlink_to(log)
    assert len(read(log, tmp_path / "a" / ".." / "a" / "plain.csv", tmp_path / "link.csv")) == 1


def test_runs_of_a_folder_may_have_left_logs_of_several_kinds(tmp_path):
    write_csv(tmp_path / "plain-s1" / "metrics.csv", ROWS)
    state = tmp_path / "wide-s1" / "trainer_state.json"
    write_csv(state.parent / "metrics.csv", [{"step": 1, "loss": 9.0}])
    put(state, json.dumps({"log_history": ROWS}))
    write_csv(tmp_path / "judged" / "tables" / "runs.csv", ROWS)
    put(tmp_path / "judged" / "comparison.json", "{}")
    write_csv(tmp_path / ".ipynb_checkpoints" / "plain-s1-checkpoint.csv", ROWS)
    plain, wide = read(tmp_path)
    check(plain, "plain", "1")
    check(wide, "wide", "1")


def test_a_column_may_be_empty_for_long(tmp_path):
    rows = "".join(f"{step},{'x' * 99},\n" for step in range(20_000))
    (found,) = read(put(tmp_path / "a-s1.csv", f"step,note,loss\n{rows}20000,x,3.5\n"))
    assert found.losses.tolist() == [3.5]


def test_spaces_round_names_are_none_of_them(tmp_path):
    (found,) = read(put(tmp_path / "x.csv", "arm, seed, step, loss\na, 1, 10, 3.5\n"))
    assert (found.arm, found.seed, found.steps.tolist()) == ("a", "1", [10])


@pytest.mark.parametrize("name", [None, r"(?P<arm>[a-z]+)_r(?P<seed>\d)\."])
def test_runs_of_a_flat_folder_count_though_their_logs_are_of_two_kinds(tmp_path, name):
    """Where another kind of log tells of the same run, the first kind counts."""
    between = "-s" if name is None else "_r"
    for seed in (1, 2):
        write_csv(tmp_path / f"a{between}{seed}.csv", ROWS)
    lines = "\n".join(f"step {r['step']}: val loss {r['loss'] - 1}" for r in ROWS)
    for run in ("a2", "a3", "b1"):
        put(tmp_path / f"{run[0]}{between}{run[1]}.log", lines)
    for other in ("notes.txt", "slurm-77.out"):
        put(tmp_path / other, "step 10: val loss 9")
    found = list(read_logs(find_logs([str(tmp_path)], name), LogColumns(name=name)))
    runs = {(one.arm, one.seed): float(one.losses[-1]) for one in found}
    last = float(ROWS[-1]["loss"])
    assert len(found) == 4 and runs == {
        **dict.fromkeys((("a", "1"), ("a", "2")), last),
        **dict.fromkeys((("a", "3"), ("b", "1")), last - 1),
    }


def test_a_configuration_beside_several_arms_is_of_none(tmp_path):
    flat, own = tmp_path / "flat", tmp_path / "own"
    logs = [write_csv(flat / f"{arm}-s{n}.csv", ROWS) for arm in "ab" for n in (1, 2)]
    logs += [write_csv(own / arm / f"{arm}-s{n}.csv", ROWS) for arm in "ab" for n in (1, 2)]
    rows = [{"arm": arm, "seed": 1, **row} for arm in "ab" for row in ROWS]
    table = write_csv(tmp_path / "table" / "x.csv", rows)
    for log in (*logs, table):
        put(log.parent / "config.json", '{"lr": 0.1}')
    for given in (flat, table.parent):
        assert [dict(one.config) for one in read(given)] == [{}] * (4 if given == flat else 2)
        with pytest.raises(UserError, match="configuration of their own lies beside the logs of a"):
            layerlab.judge(given, strict=True)
    assert [dict(one.config) for one in read(own)] == [{"lr": 0.1}] * 4
    assert layerlab.judge(own, strict=True).rows
    assert [dict(one.config) for one in read(*logs[:2])] == [{"lr": 0.1}] * 2


def test_a_day_in_jsonl_is_a_name(tmp_path):
    rows = [{"arm": "2024-01-01", **row} for row in ROWS]
    (found,) = read(put(tmp_path / "x.jsonl", "\n".join(map(json.dumps, rows))))
    check(found, "2024-01-01", None)


def test_settings_beside_a_log_are_read_as_they_are_kept(tmp_path):
    log = write_csv(tmp_path / "log.csv", ROWS)
    (tmp_path / "args.json").write_text('{"lr": 0.1, "model": {"width": 8}}')
    (tmp_path / "config.yaml").write_text("lr2:\n  desc: null\n  value: 3\n_wandb:\n  value: 1\n")
    assert read_configuration(log) == {"lr": 0.1, "model.width": 8, "lr2": 3}


def test_what_a_number_is_not_finite_is_kept_as_such(tmp_path):
    rows = [*ROWS[:2], {"step": 30, "loss": "nan"}]
    (found,) = read(write_csv(tmp_path / "a-s1.csv", rows))
    assert np.isnan(found.losses[-1]) and len(found.losses) == 3


BAD = {
    "there is no log at": lambda at: at / "nothing.csv",
    "no log lies in the folder": lambda at: at,
    "has no column with a usual name for a loss; type --loss COLUMN, one of 'a', 'b'": (
        lambda at: write_csv(at / "x.csv", [{"a": 1, "b": 2}])
    ),
    "holds something else than numbers": (
        lambda at: write_csv(at / "x.csv", [{"step": 1, "loss": "low"}])
    ),
    "Failed to parse string: '3,21' as a scalar of type double; write 3.21 for 3,21, or name": (
        lambda at: put(at / "x.csv", 'step,loss\n1,"3,21"\n')
    ),
    "cannot be read as a table": lambda at: put(at / "x.csv", "step,loss\n1,2\n3"),
    "has two columns called 'loss'": lambda at: put(at / "x.csv", "loss,loss\n1,2\n"),
    "cannot be read as a JSON object a line (line 2)": (
        lambda at: put(at / "x.jsonl", '{"loss": 1}\n{"loss":')
    ),
    "cannot be read as a Parquet file": lambda at: put(at / "x.parquet", "PAR1"),
    "has no list 'log_history'": lambda at: put(at / "trainer_state.json", "{}"),
    "nothing was logged": lambda at: put(at / "trainer_state.json", '{"log_history": []}'),
    "has no line that nanoGPT would write": lambda at: put(at / "x.log", "nothing"),
    "is of no kind that is known": lambda at: put(at / "x.bin", ""),
    "has no evaluation with 'nats'; leave the folder out": lambda at: diverged(at),
    "holds no scalars": lambda at: put(at / "events.out.tfevents.1", ""),
    "holds a step that is not finite": lambda at: put(at / "x.csv", "step,loss\ninf,1\n"),
    "has no arm: the column 'arm' is empty there": (
        lambda at: put(at / "x.csv", "arm,step,loss\na,1,2\n,1,2\n")
    ),
    "has no reading of 'loss'": lambda at: put(at / "x.csv", "step,loss\n1,\n"),
    "has no step in 'step' for 1 of 1 readings of 'b' with seed 1; write": (
        lambda at: put(at / "x.csv", "arm,seed,step,loss\na,1,1,2\nb,1,,2\n")
    ),
    "has several readings of 'a' at one step": (
        lambda at: put(at / "x.csv", "arm,step,loss\na,1,2\na,1,3\n")
    ),
    "several readings of 'a' with seed 1 at its first step, 1: they are of several runs": (
        lambda at: put(at / "x.csv", "arm,seed,lr,step,loss\na,1,.1,1,2\na,1,.2,1,3\n")
    ),
    "name a column, as 'run_id' may be, that tells them apart": (
        lambda at: put(at / "x.csv", "run_id,step,loss\nq,1,2\nr,1,3\n")
    ),
    "x.csv has several readings of 'a' at one step; name the column": (
        lambda at: put(at / "x.csv", "arm,seed,step,loss\na,,1,2\na,,1,3\n")
    ),
    "has 2 rows of 'a' with seed 1 and no column with a usual name for a step": (
        lambda at: put(at / "x.csv", "arm,seed,loss\na,1,2\na,1,3\n")
    ),
    "the column 'split' of": (
        lambda at: put(at / "x.csv", "split,step,loss\ntrain,1,2\nval,2,3\n")
    ),
    "are both called '1' by their paths, and no seed tells them apart; type --name": (
        lambda at: [write_csv(at / arm / "1" / "log.csv", ROWS) for arm in "ab"] and at
    ),
    "lies beside a log and cannot be read": lambda at: beside(at),
}


def test_a_row_without_a_loss_behind_the_last_reading_is_known(tmp_path):
    (log,) = read(put(tmp_path / "a.csv", "step,loss\n1,3\n2,\n3,2\n4,\n"))
    assert log.steps.tolist() == [1, 3] and log.blank == 4
    (log,) = read(put(tmp_path / "a.csv", "step,loss\n1,3\n2,\n3,2\n"))
    assert log.blank is None
    (log,) = read(put(tmp_path / "a.csv", "loss,other\n3,1\n,1\n"))
    assert log.blank is None


def test_a_path_in_which_the_pattern_finds_no_arm_is_named(tmp_path):
    log = write_csv(tmp_path / "x.csv", ROWS)
    with pytest.raises(UserError, match=r"x.csv' names no arm; type --arm COLUMN, or --name REGEX"):
        read(log, name="(?P<arm>q*)")


def diverged(at: Path) -> Path:
    given = runs(recipe())[0]
    note = {"kind": "note", "update": 0, "text": "the loss is not finite"}
    return write(at, replace(record(given, math.nan), events=(note,)))


def beside(at: Path) -> Path:
    put(at / "config.json", "{")
    return put(at / "x.csv", "step,loss\n1,2\n")


@pytest.mark.parametrize("said", BAD)
def test_what_cannot_be_read_is_one_line(said, tmp_path):
    assert said in refusal(read, BAD[said](tmp_path))


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"loss": "los"}, "no column 'los', which --loss names; did you mean 'loss'?"),
        ({"arm": "what"}, "no column 'what', which --arm names; it has 'step', 'loss'"),
        ({"name": "("}, "--name '(' is no regular expression"),
        ({"name": "x(?P<arm>y)"}, "does not fit"),
        ({"name": "x"}, "--name 'x' has no group named 'arm'; expected (?P<arm>...)"),
        ({"line": "x"}, "--line 'x' has no group named 'step'"),
    ],
)
def test_a_column_that_is_not_there_is_one_line(columns, said, tmp_path):
    path = write_csv(tmp_path / "a-s1.csv", ROWS)
    assert said in refusal(read, path, **columns)


@pytest.mark.parametrize("spread", [{"eval": {"loss": 2.0}}, {"eval": {"loss": 2.0}, "x": {}}])
def test_a_name_that_stands_twice_in_a_line_is_refused(spread, tmp_path):
    line = json.dumps({"step": 1, "eval/loss": 3.0, **spread})
    path = put(tmp_path / "a-s1.jsonl", f"{line}\n{line}\n")
    assert "has 'eval/loss' twice, by itself and in an object" in refusal(read, path)


def test_a_cell_that_stands_for_no_loss_is_to_be_left_empty(tmp_path):
    path = put(tmp_path / "a-s1.csv", "step,loss\n1,3.2\n2,None\n")
    assert "leave a cell empty, or write nan in it, or name another" in refusal(read, path)


def test_what_was_judged_before_hides_no_logs_below_it(tmp_path):
    for arm in ("plain", "wide"):
        write_csv(tmp_path / f"{arm}-s1" / "metrics.csv", ROWS)
    layerlab.judge([tmp_path], out=tmp_path)
    assert list((tmp_path / "tables").glob("*.csv"))
    assert [one.arm for one in read(tmp_path)] == ["plain", "wide"]


def test_no_log_is_one_line():
    refuses("no log was given; expected a table", read)
    refuses("an empty path was given; name a file or a folder", read, "")


def test_an_expression_that_is_none_is_told_though_columns_name_the_runs(tmp_path):
    path = write_csv(tmp_path / "x.csv", [{"arm": "a", "seed": 1, **row} for row in ROWS])
    told = refusal(read, path, name="(")
    assert "--name '(' is no regular expression" in told and "type a backslash before" in told


def test_a_state_that_is_cut_off_is_told_with_what_to_do(tmp_path):
    state = put(tmp_path / "trainer_state.json", "")
    assert refusal(read, state).endswith("; copy the file anew, or leave it out")


def test_a_log_beside_runs_of_another_kind_is_not_passed_over(tmp_path):
    for seed in (1, 2):
        state = {"log_history": [{"step": 1, "eval_loss": 1.0}], "global_step": 1}
        (tmp_path / f"wide-s{seed}").mkdir()
        put(tmp_path / f"wide-s{seed}" / "trainer_state.json", json.dumps(state))
    put(tmp_path / "notes.txt", "nothing of numbers")
    assert len(read(tmp_path)) == 2
    write_csv(tmp_path / "wide-s3.csv", ROWS)
    refuses(r"wide-s3.csv lies beside runs of another kind", read, tmp_path)
