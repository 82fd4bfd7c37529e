"""Logs that are damaged, or ask for more than a machine can hold: one line names each."""

import json
import math
import time
from pathlib import Path

import numpy as np
import pytest

import layerlab
from layerlab import UserError
from tests.logs.written import ROWS, put, read, write_csv
from tests.support.refused import refuses


@pytest.mark.full
@pytest.mark.parametrize("kind", ["numbers", "words"])
def test_parquet_that_unpacks_to_gigabytes_is_refused(kind, tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    size = 5_000_000 if kind == "numbers" else 20_000
    other = pa.nulls(size, pa.int8()) if kind == "numbers" else pa.array(["x" * 20_000] * size)
    losses = pa.array(np.full(size, 3.5))
    log = tmp_path / "x.parquet"
    parquet.write_table(pa.table({"loss": losses, "other": other}), log, compression="zstd")
    assert log.stat().st_size < 100_000
    refuses(r"unpacks to more than .* bytes; .* --max-bytes", read, log)


def write_events(folder: Path) -> tuple[Path, bytearray, int]:
    """A run's event file, its bytes, and where its last record is."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        for row in ROWS:
            writer.add_scalar("val/loss", row["loss"], row["step"])
    (file,) = folder.iterdir()
    raw = bytearray(file.read_bytes())
    return file, raw, raw.rindex(b"val/loss")


@pytest.mark.parametrize("kind", ["a bit", "a length"])
def test_event_files_that_are_damaged_are_named(kind, tmp_path):
    file, raw, record = write_events(tmp_path)
    raw[record if kind == "a bit" else 6] ^= 1
    file.write_bytes(raw)
    assert file.name in refuses("is damaged behind its first", read, file)


@pytest.mark.parametrize("kind", ["a record", "a checksum", "a head"])
def test_event_files_that_are_still_written_count_up_to_the_last_whole_record(kind, tmp_path):
    for name in ("plain", "wide"):
        file, raw, _ = write_events(tmp_path / name)
        if name == "wide":
            extra = {"a record": -9, "a checksum": -3, "a head": 5}[kind]
            file.write_bytes(raw[:extra] if extra < 0 else raw + raw[:extra])
    plain, wide = read(tmp_path / "plain", tmp_path / "wide")
    lost = 0 if kind == "a head" else 1
    assert (plain.cut, wide.cut) == (False, True)
    assert wide.steps.tolist() == plain.steps[: len(plain.steps) - lost].tolist()
    found = layerlab.judge(tmp_path, at=float(wide.steps[-1]))
    (said,) = [one for one in found.content["remarks"] if "end within a line or a record" in one]
    assert "wide (" in said and "plain (" not in said


def test_long_lines_and_names_take_no_longer_for_it(tmp_path):
    long = put(tmp_path / "a.log", f"{'step 1 ' * 30_000}\nstep 10: val loss 3.5\n")
    name = f"wide{'-' * 5000}x"
    wide = put(tmp_path / "b.csv", f"step,{name} - loss\n10,3.5\n")
    start = time.perf_counter()
    assert [one.arm for one in read(long, wide)] == ["a", name]
    assert time.perf_counter() - start < 5


@pytest.mark.full
def test_names_that_few_rows_have_take_no_longer_for_it(tmp_path):
    rows = [{"step": n, "loss": 3.5, f"own{n}": 1} for n in range(7000)]
    log = put(tmp_path / "x.jsonl", "\n".join(map(json.dumps, rows)))
    start = time.process_time()
    (found,) = read(log)
    assert len(found.losses) == 7000 and time.process_time() - start < 10


@pytest.mark.parametrize(
    ("lines", "number"),
    [
        ('{"step": 1, "loss": [1\n2]}', 1),
        ('{"step": 1, "loss": 2}, {"step": 2, "loss": 2}', 1),
        ('{"step": 1, "loss": 2}\n{"step": 2, "x": [{}\n{}]}\n{"step": 3}, {"step": 4}', 2),
        ('{"step": 1, "x": [1\n2]}\n{"step": 2},"layerlab reads a line by itself",{"x": 1}', 1),
        ('{"step": 1, "x": [1\n2]}\n{"x": 2},"layerlab re\\u0061ds a line by itself",{"x": 1}', 1),
        ('{"step": 1, "loss": 2}\n{"step": 2, "loss": 2, "loss": 3}', 2),
    ],
)
def test_a_line_that_is_no_object_by_itself_is_named(lines, number, tmp_path):
    refuses(rf"as a JSON object a line \(line {number}\)", read, put(tmp_path / "x.jsonl", lines))


@pytest.mark.parametrize("word", ["plain", "layerlab reads a line by itself", "\\u00e9"])
def test_lines_are_read_alike_together_and_one_by_one(word, tmp_path):
    rows = [f'{{"step": {n}, "loss": {3 + 1 / n}, "note": "{word}"}}' for n in range(1, 9)]
    rows[3:5] = ["", '\t{"loss": NaN, "step": 4}\r', '{"step": 5, "loss": null}']
    (log,) = read(put(tmp_path / "x.jsonl", "\n".join(rows)))
    assert log.steps.tolist() == [1, 2, 3, 4, 6, 7, 8]
    expected = [4.0, 3.5, 3 + 1 / 3, math.nan, 3 + 1 / 6, 3 + 1 / 7, 3.125]
    assert np.array_equal(log.losses, expected, equal_nan=True)


@pytest.mark.parametrize("name", ["trainer_state.json", "x.jsonl"])
def test_rows_with_a_name_each_are_no_table(name, tmp_path):
    rows = [{"step": n, "loss": 3.5, f"own{n}": 1} for n in range(8000)]
    whole = name.endswith(".json")
    text = json.dumps({"log_history": rows}) if whole else "\n".join(map(json.dumps, rows))
    with pytest.raises(UserError, match=r"has 8,000 entries with 8,002 names in all; expected"):
        read(put(tmp_path / name, text))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "config.yaml",
            "a0: &a0 {x: 1}\n"
            + "".join(
                f"a{n}: &a{n} {{{', '.join(f'{key}: *a{n - 1}' for key in 'abcdefghi')}}}\n"
                for n in range(1, 9)
            ),
            "it repeats itself into more than 200,000 values",
        ),
        ("config.yaml", "a: &a {b: *a}", "it repeats itself into more than 200,000 values"),
        ("config.yaml", "a: &a [1, *a]", "it repeats itself into more than 200,000 values"),
        ("config.yaml", f"a: {'1:' * 999}1", "expected a number of at most 64 digits"),
        ("config.yaml", "a: !!timestamp x", "no attribute"),
        # How deep is too deep, and for which reader first, is another matter in each Python.
        ("config.json", '{"a":' * 3000 + "1" + "}" * 3000, "(recursion|nested too deeply)"),
    ],
)
def test_settings_beside_a_log_are_of_a_size(name, text, said, tmp_path):
    put(tmp_path / name, text)
    with pytest.raises(UserError, match=f"{name} lies beside a log and cannot be read: .*{said}"):
        read(write_csv(tmp_path / "x.csv", ROWS))


@pytest.mark.parametrize("row", ['{"loss": 1' + "0" * 400 + "}", r'{"loss": 1, "note": "\ud800"}'])
def test_values_that_a_table_has_no_room_for_are_one_line(row, tmp_path):
    refuses(r"x.jsonl cannot be read as a table: ", read, put(tmp_path / "x.jsonl", row))
