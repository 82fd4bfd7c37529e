"""Readers of files: of any bytes, and of real files with some bytes changed."""

import gzip
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest
from hypothesis import strategies as st

import layerlab
from layerlab import UserError, builtin
from layerlab.data.archives import ENDINGS, read_members
from layerlab.data.cleaning.benchmark_questions import questions
from layerlab.data.sources import open_source
from layerlab.evaluation.benchmarks.files import BenchmarkFile
from layerlab.evaluation.benchmarks.readers import _FORMS
from layerlab.numerics.emulation.policies.policy import load_policy
from layerlab.recipes.training_sections import Source
from tests.data.test_archives import packed
from tests.hostile.attack import typed
from tests.hostile.fuzz import fuzz

ROWS = json.dumps({"text": "A row.", "question": "Which?", "a": "x", "answer": "A"}).encode() * 3
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
BYTES = st.binary(max_size=300) | WORDS.map(str.encode)


def damaged(whole: bytes) -> st.SearchStrategy[bytes]:
    """A file with a stretch of it replaced, left out or repeated."""
    places = st.tuples(st.integers(0, len(whole)), st.integers(0, 40), st.binary(max_size=20))
    return places.map(lambda one: whole[: one[0]] + one[2] + whole[one[0] + one[1] :])


def named(*names: str) -> st.SearchStrategy[str]:
    return st.sampled_from(names)


def refused(read: Callable[[], Any]) -> None:
    """Whatever is wrong is one line; nothing being wrong is well, too."""
    try:
        read()
    except UserError as error:
        assert "\n" not in str(error)


@fuzz(form=st.sampled_from(sorted(_FORMS)), content=BYTES | damaged(ROWS))
def test_rows_of_a_benchmark(form, content):
    files = [BenchmarkFile("x", content)] * (2 if form in {"labelled", "parallel"} else 1)
    refused(lambda: list(_FORMS[form](*files)))


@fuzz(name=named("a.json", "a.jsonl", "a.csv", "a.src.txt"), content=BYTES | damaged(ROWS))
def test_questions(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    refused(lambda: list(questions(tmp_path / name)))


TABLE = io.BytesIO()
pandas.DataFrame({"text": ["A row.", "一行"]}).to_parquet(TABLE)
TEXTS = BYTES | damaged(ROWS) | damaged(gzip.compress(ROWS, mtime=0)) | damaged(TABLE.getvalue())


@fuzz(name=named("a.txt", "a.jsonl", "a.jsonl.gz", "a.parquet", "a.md"), content=TEXTS)
def test_texts(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    refused(lambda: list(open_source(Source(text=str(tmp_path / name))).pieces()))


@fuzz(ending=st.sampled_from(ENDINGS), data=st.data())
def test_archives(ending, tmp_path, data):
    path = tmp_path / f"a{ending}"
    path.unlink(missing_ok=True)
    whole = packed(path, {"a.csv": ROWS, "b.csv": b"2"}).read_bytes()
    path.write_bytes(data.draw(damaged(whole)))
    refused(lambda: list(read_members(path, lambda name: True)))


@fuzz(data=st.data())
def test_weights(tmp_path, data):
    """Of weights it is the head that says what they are; any numbers are weights."""
    inspected("model.safetensors", tmp_path, data, 3000)


@fuzz(name=named("tokenizer.json", "tokenizer_config.json"), data=st.data())
def test_tokenizers(name, tmp_path, data):
    inspected(name, tmp_path, data)


def inspected(name: str, place: Path, data: st.DataObject, head: int | None = None) -> None:
    folder = place / "model"
    if not folder.exists():
        shutil.copytree(builtin.path("llama"), folder)
    whole = (builtin.path("llama") / name).read_bytes()
    part = whole[:head]
    (folder / name).write_bytes(data.draw(damaged(part)) + whole[len(part) :])
    words = ("--measures", "stream", "--samples", "1", "--context", "16", "--json", "--quiet")
    done = typed("inspect", str(folder), *words).survived()
    (folder / name).write_bytes(whole)
    assert done.code == 0 or done.refused()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    layerlab.inspect("llama", texts="A text.", measures=["stream"], progress=False).save(folder)
    return folder / "report.json"


@fuzz(data=st.data())
def test_a_report(report, data):
    whole = report.read_bytes()
    changed = report.with_name("changed.json")
    changed.write_bytes(data.draw(BYTES | damaged(whole)))
    refused(lambda: layerlab.load_report(changed))


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drawn")
    asked = {"measures": ["features", "stream"], "progress": False}
    layerlab.inspect("llama", texts="A text, and a text, and a text.", **asked).save(folder)
    return folder / "report.json"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("pictures", "features", "llama", "words"), None),
        (("pictures", "features", "llama", "points"), [[[3]]]),
        (("pictures", "features", "llama", "skip"), "x"),
        (("pictures", "features", "llama", "shares"), [["x"]]),
        (("pictures", "features", "llama"), {"kind": "features"}),
    ],
)
def test_a_report_that_fits_and_cannot_be_drawn(drawn, path, value, tmp_path):
    content = json.loads(drawn.read_text())
    inside = content
    for part in path[:-1]:
        inside = inside[part]
    inside[path[-1]] = value
    (tmp_path / "report.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"report.json.* damaged"):
        layerlab.load_report(tmp_path).to_html(tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


POLICY = b'format = "bf16"\nkeep = ["model.layers.0"]\n[measured]\nleft = 0.1\n'


@fuzz(content=BYTES | damaged(POLICY))
def test_a_policy(content, tmp_path):
    file = tmp_path / "policy.toml"
    file.write_bytes(content)
    refused(lambda: load_policy(file))
