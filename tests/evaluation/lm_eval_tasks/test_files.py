"""Task files are data: what they include is merged, what would never end is one line."""

from pathlib import Path

import pytest

from layerlab import UserError
from layerlab.evaluation.lm_eval_tasks.files import Code, read_task_file

pytest.importorskip("lm_eval")


def test_a_file_is_read_as_lm_eval_reads_it(tmp_path: Path) -> None:
    from lm_eval.tasks._yaml_loader import load_yaml

    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "_base_yaml").write_text("task: base\ntask_list: [x]\na: [1, {b: 2}]\n")
    (tmp_path / "own.yaml").write_text("include: inner/_base_yaml\ntask: own\n")
    assert read_task_file(tmp_path / "own.yaml") == load_yaml(tmp_path / "own.yaml")


def test_a_function_is_a_name_and_runs_nothing(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef f(x): return x\n")
    (tmp_path / "own.yaml").write_text("task: own\nprocess_docs: !function evil.f\n")
    found = read_task_file(tmp_path / "own.yaml")["process_docs"]
    assert found == "evil.f" and isinstance(found, Code)
    assert not (tmp_path / "ran").exists()


BOMB = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n"
    for old, new in zip("abcdefg", "bcdefgh", strict=True)
)


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
def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "own.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        read_task_file(tmp_path / "own.yaml")
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "own.yaml")
    with pytest.raises(UserError, match="is a pipe; expected a file"):
        read_task_file(tmp_path / "own.yaml")
