"""Task files are data: what they include is merged, what would never end is one line."""

import re
import time

import pytest
import yaml
from packaging.version import Version

from layerlab.evaluation.lm_eval_tasks.files import Code, read_task_file
from tests.support.refused import refusal, refuses

pytest.importorskip("lm_eval")


def test_a_file_is_read_as_lm_eval_reads_it(tmp_path):
    from lm_eval.tasks._yaml_loader import load_yaml

    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "_base_yaml").write_text("task: base\ntask_list: [x]\na: [1, {b: 2}]\n")
    (tmp_path / "own.yaml").write_text("include: inner/_base_yaml\ntask: own\n")
    assert read_task_file(tmp_path / "own.yaml") == load_yaml(tmp_path / "own.yaml")


def test_a_function_is_a_name_and_runs_nothing(tmp_path):
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef f(x): return x\n")
    (tmp_path / "own.yaml").write_text("task: own\nprocess_docs: !function evil.f\n")
    found = read_task_file(tmp_path / "own.yaml")["process_docs"]
    assert found == "evil.f" and isinstance(found, Code)
    assert not (tmp_path / "ran").exists()


BOMB = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n"
    for old, new in zip("abcdefg", "bcdefgh", strict=True)
)


@pytest.mark.full
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("include: own.yaml\ntask: own", "again, or more than 16 files; break that chain"),
        ("include: [3]\ntask: own", "includes 3; expected the name of a file"),
        ("include: none.yaml\ntask: own", "cannot read"),
        ("- a", "holds no settings; expected a task file of lm-eval"),
        ("a: b", "is no task of lm-eval; expected a line task: NAME, or group: NAME"),
        ("task: [unclosed", "is no YAML of a task"),
        ("task: " + "[" * 1_500, "is no YAML of a task"),
        ("task: !!python/object/apply:os.system [ls]", "is no YAML of a task"),
        (f"{BOMB}task: own", "repeats itself into more than 200,000 values; shorten it"),
        ("task: own\n# " + "x" * (1 << 20), "has more than 1 MiB; expected a task file of lm-eval"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(tmp_path, text, said):
    (tmp_path / "own.yaml").write_text(text, encoding="utf-8")
    assert said in refusal(read_task_file, tmp_path / "own.yaml")


def test_a_pipe_is_no_file(tmp_path):
    import os

    os.mkfifo(tmp_path / "own.yaml")
    refuses("is a pipe; expected a file", read_task_file, tmp_path / "own.yaml")


def merges(depth: int) -> str:
    lines = ["a0: &a0 {k: 1}"]
    for one in range(1, depth):
        lines.append(f"a{one}: &a{one} {{<<: [{', '.join([f'*a{one - 1}'] * 10)}]}}")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("v: 1" + ":1" * 30_000, "expected a number of at most 64 digits"),
        ("v: 1" + ":1" * 300 + ".5", "expected a number of at most 64 digits"),
        ("v: 0x" + "f" * 5000, "expected a number of at most 64 digits"),
        ("v: !!int ''", "string index out of range"),
        ("v: !!bool x", "'x'"),
        ("v: !!timestamp x", "has no attribute"),
        ('v: "\\uD800"', "half of a surrogate pair"),
    ],
)
def test_what_yaml_makes_more_of_than_stands_there_is_one_line(tmp_path, text, said):
    file = tmp_path / "t.yaml"
    file.write_text(f"task: t\n{text}\n")
    start = time.process_time()
    refuses(re.escape(said), read_task_file, file)
    assert time.process_time() - start < 5


def test_merges_of_merges_are_counted_or_made_once(tmp_path):
    file = tmp_path / "t.yaml"
    file.write_text(f"task: t\n{merges(9)}\n")
    start = time.process_time()
    if Version(yaml.__version__) < Version("6.0.4"):
        refuses("it merges over 200,000 values", read_task_file, file)
    else:  # PyYAML takes each pair once
        assert read_task_file(file)["a8"] == {"k": 1}
    assert time.process_time() - start < 5


def test_tables_are_merged_and_numbers_are_read(tmp_path):
    file = tmp_path / "t.yaml"
    first = "task: t\na: &a {k: 1, l: 0x1f}\nb: {<<: *a, k: 2.5}\n"
    file.write_text(first + "c: {<<: [*a, {m: 1:30}]}\n")
    found = read_task_file(file)
    assert found["b"] == {"k": 2.5, "l": 31} and found["c"] == {"k": 1, "l": 31, "m": 90}
