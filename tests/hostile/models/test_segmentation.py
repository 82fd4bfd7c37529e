"""A file of another user's in the folder for temporary files that jieba would take for its own."""

import marshal
import sys
import tempfile
from pathlib import Path

import pytest

jieba = pytest.importorskip("jieba", reason="jieba is not installed: pip install '.[eval]'")

from layerlab.evaluation.metrics import segmentation  # noqa: E402
from layerlab.evaluation.metrics.segmentation import JIEBA, prepare_default  # noqa: E402

TEXT = "最高人民法院依法审理"
WORDS = ["最高人民法院", "依法", "审理"]


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A dictionary in which the whole text is one word."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    begins = {TEXT[:size]: 0 for size in range(1, len(TEXT))}
    with (tmp_path / "jieba.cache").open("wb") as file:
        marshal.dump(({TEXT: 10**9, **begins}, 10**9), file)
    return tmp_path


@pytest.mark.full
def test_words_are_those_of_the_package(planted, monkeypatch):
    assert list(jieba.Tokenizer().cut(TEXT)) == [TEXT]
    monkeypatch.setattr(segmentation, "_tokenizer", segmentation._tokenizer.__wrapped__)
    assert JIEBA(TEXT) == WORDS
    assert [one.name for one in planted.iterdir()] == ["jieba.cache"]


@pytest.mark.full
def test_so_are_those_of_tasks_of_lm_eval(planted, monkeypatch):
    monkeypatch.setattr(jieba, "dt", jieba.Tokenizer())
    prepare_default()
    assert list(jieba.dt.cut(TEXT)) == WORDS
    monkeypatch.delitem(sys.modules, "jieba")
    prepare_default()
