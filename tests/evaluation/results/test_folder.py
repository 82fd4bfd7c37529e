"""Which folders an evaluation may be written into: nothing of the user's own is replaced."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from layerlab import UserError
from layerlab.errors import Interrupted
from layerlab.evaluation.results.folder import list_earlier_tables
from layerlab.evaluation.results.result import EvaluationResult
from layerlab.records.parse import seal
from layerlab.system.own_page import mark_of
from tests.evaluation.results.test_result import content
from tests.support.mounted import room
from tests.support.refused import refusal, refuses

__all__ = ["content"]

OWN_PAGE = mark_of("evaluate")
TASK = f"boolq-{'0123456789ab' * 2}"


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine")


FOREIGN: dict[str, tuple[tuple[str, ...], str]] = {
    "page": (("report.html",), "report.html"),
    "results": (("results.json",), "results.json"),
    "table": (("tables/groups.csv",), "tables"),
    "inspection": (("report.html", "report.json"), "report.html"),
    "thesis": ((f"leaves/{TASK}.json", "thesis.tex"), "thesis.tex"),
    "page beside answers": ((f"leaves/{TASK}.json", "report.html"), "report.html"),
    "leaves of a tree": (("leaves/oak.json",), "leaves"),
    "a file": (("samples",), "samples"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_no_evaluation_is_left_alone(name, content, tmp_path):
    names, said = FOREIGN[name]
    write(tmp_path, *names)
    for refused in (list_earlier_tables, EvaluationResult(content).save):
        assert refusal(refused, tmp_path) == (
            f"{tmp_path} holds something other than an evaluation: {said}; "
            "name a new or an empty folder"
        )
    assert {(tmp_path / one).read_text() for one in names} == {"mine"}


def test_what_an_evaluation_leaves_may_be_written_into(content, tmp_path):
    assert list_earlier_tables(tmp_path / "new") == list_earlier_tables(tmp_path) == []
    write(tmp_path, f"leaves/{TASK}.json", f"samples/{TASK}.jsonl", "leaves/.x.0a1b2c3d.partial")
    write(tmp_path, ".results.json.0a1b2c3d.partial")
    assert list_earlier_tables(tmp_path) == []
    EvaluationResult(content).save(tmp_path)
    assert list_earlier_tables(tmp_path) == ["benchmarks", "subjects", "groups"]
    write(tmp_path, "notes.txt", "tables/mine.csv")
    EvaluationResult(content).save(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == (tmp_path / "tables/mine.csv").read_text()


def test_a_table_that_was_added_is_not_replaced(content, tmp_path):
    EvaluationResult(content).save(tmp_path)
    write(tmp_path, "tables/compared.csv")
    with pytest.raises(UserError, match=r"other than an evaluation: tables/compared.csv"):
        EvaluationResult(content).save(tmp_path)
    assert (tmp_path / "tables" / "compared.csv").read_text() == "mine"


def test_results_tables_and_page_are_written_all_or_none(content, tmp_path):
    EvaluationResult(content).save(tmp_path, OWN_PAGE)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    before = {path: path.read_bytes() for path in files}
    with room(2 * max(map(len, before.values()))):
        long = OWN_PAGE + "a" * 10**6
        refuses(
            "no more could be", EvaluationResult({**content, "suite": "x"}).save, tmp_path, long
        )
    assert {path: path.read_bytes() for path in files} == before


CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "changed": lambda one: {**one, "arms": []},
    "without a digest": lambda one: {key: one[key] for key in one if key != "digest"},
    "of something else": lambda one: seal({"name": "of another program"}),
    "a list": lambda one: [one],
}


@pytest.mark.parametrize("change", CHANGES)
def test_results_are_those_of_an_evaluation(change, content, tmp_path):
    EvaluationResult(content).save(tmp_path)
    file = tmp_path / "results.json"
    file.write_text(json.dumps(CHANGES[change](json.loads(file.read_text()))))
    refuses(r"other than an evaluation: results.json; name a new", list_earlier_tables, tmp_path)


def test_tables_are_known_wherever_writing_is_cut_off(content, tmp_path, monkeypatch):
    """An evaluation that was stopped while it wrote may be written again, to the same end."""
    compared = [{"arm": "a", "against": "b", "title": "BoolQ", "difference": 0.5}]
    replace = Path.replace
    for most in range(5):
        folder, left = tmp_path / str(most), [most]

        def stop(*given: Any, left: list[int] = left) -> Path:
            left[0] -= 1
            if left[0] < 0:
                raise Interrupted("", 130)
            return replace(*given)

        EvaluationResult({**content, "compared": compared}).save(folder, OWN_PAGE)
        monkeypatch.setattr(Path, "replace", stop)
        with pytest.raises(Interrupted):
            EvaluationResult(content).save(folder, OWN_PAGE)
        monkeypatch.setattr(Path, "replace", replace)
        EvaluationResult(content).save(folder)
        assert not (folder / "report.html").exists()
        tables = {path.stem for path in (folder / "tables").iterdir()}
        assert tables == {"benchmarks", "groups", "subjects"}
