"""Readers of files: of any bytes, and of real files with some bytes changed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import layerlab
from layerlab import UserError, builtin
from layerlab.adaptation.question import questions
from layerlab.archive import ENDINGS, members
from layerlab.evaluation.reader import _FORMS
from layerlab.evaluation.shelf import File
from layerlab.training.section import Source
from layerlab.training.source import opened
from tests.hostile.attack import typed
from tests.test_archive import packed

MANY = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
ROWS = json.dumps({"text": "A row.", "question": "Which?", "a": "x", "answer": "A"}).encode() * 3
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
BYTES = st.binary(max_size=300) | WORDS.map(str.encode)


def damaged(whole: bytes) -> st.SearchStrategy[bytes]:
    """A file with a stretch of it replaced, left out or repeated."""
    places = st.tuples(st.integers(0, len(whole)), st.integers(0, 40), st.binary(max_size=20))
    return places.map(lambda one: whole[: one[0]] + one[2] + whole[one[0] + one[1] :])


def refused(read: Callable[[], Any]) -> None:
    """Whatever is wrong is one line; nothing being wrong is well, too."""
    try:
        read()
    except UserError as error:
        assert "\n" not in str(error)


@pytest.mark.full
@pytest.mark.parametrize("form", sorted(_FORMS))
@MANY
@given(content=BYTES | damaged(ROWS))
def test_rows_of_a_benchmark(form: str, content: bytes) -> None:
    files = [File("x", content)] * (2 if form in {"labelled", "parallel"} else 1)
    refused(lambda: list(_FORMS[form](*files)))


@pytest.mark.full
@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.csv", "a.src.txt"])
@MANY
@given(content=BYTES | damaged(ROWS))
def test_questions(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    refused(lambda: list(questions(tmp_path / name)))


@pytest.mark.full
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.jsonl.gz", "a.parquet", "a.md"])
@MANY
@given(content=BYTES | damaged(ROWS))
def test_texts(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    refused(lambda: list(opened(Source(text=str(tmp_path / name))).pieces()))


@pytest.mark.full
@pytest.mark.parametrize("ending", ENDINGS)
@MANY
@given(data=st.data())
def test_archives(ending: str, tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / f"a{ending}"
    path.unlink(missing_ok=True)
    whole = packed(path, {"a.csv": ROWS, "b.csv": b"2"}).read_bytes()
    path.write_bytes(data.draw(damaged(whole)))
    refused(lambda: list(members(path, lambda name: True)))


@pytest.mark.full
@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "tokenizer_config.json"])
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_files_of_a_model(name: str, tmp_path: Path, data: st.DataObject) -> None:
    folder = tmp_path / "model"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(builtin.path("llama"), folder)
    whole = (folder / name).read_bytes()
    # Of weights it is the head that says what they are; any numbers are weights.
    head = whole[:3000] if name.endswith(".safetensors") else whole
    (folder / name).write_bytes(data.draw(damaged(head)) + whole[len(head) :])
    words = ("--measures", "stream", "--samples", "1", "--context", "16", "--json", "--quiet")
    done = typed("inspect", str(folder), *words).survived()
    assert done.code == 0 or done.refused()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    layerlab.inspect("llama", texts="A text.", measures=["stream"], progress=False).save(folder)
    return folder / "report.json"


@pytest.mark.full
@MANY
@given(data=st.data())
def test_a_report(report: Path, data: st.DataObject) -> None:
    whole = report.read_bytes()
    changed = report.with_name("changed.json")
    changed.write_bytes(data.draw(BYTES | damaged(whole)))
    refused(lambda: layerlab.load_report(changed))
