import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.tokenizers.tokenizer_char import TokenizerChar

from layerlab.evaluation.metrics import segmentation
from layerlab.evaluation.metrics.segmentation import CHARACTERS, JIEBA, JIEBA_LINES, LATIN, SPACED
from tests.support.forked import empty_python
from tests.support.refused import refuses

SOME = settings(max_examples=50, deadline=None)

pytest.importorskip("jieba", reason="jieba is not installed: pip install '.[eval]'")


def test_every_way_has_a_name_of_its_own():
    ways = (JIEBA, JIEBA_LINES, CHARACTERS, SPACED, LATIN)
    assert len({str(way) for way in ways}) == len(ways)


@SOME
@given(st.text(alphabet="中国人民法院合同 \n。a1", max_size=40))
def test_jieba_only_cuts(text):
    assert "".join(JIEBA(text)) == "".join(text.split())


@SOME
@given(st.text(alphabet="中国人民法院 。？\na", max_size=40))
def test_blank_lines_add_empty_words_and_nothing_else(text):
    assert [word for word in JIEBA_LINES(text) if word] == JIEBA(text)


def test_blank_lines_are_counted_where_they_stand_after_a_sentence():
    assert JIEBA_LINES("法院。\n\n合同") == ["法院", "。", "", "", "合同"]


def test_other_ways():
    assert CHARACTERS("合 同a") == ["合", "同", "a"]
    assert SPACED(" a  b\n") == ["a", "b"]
    assert LATIN("It's 2.5%") == ["it", "s", "2", "5"]


@SOME
@given(st.text(alphabet="中国合同a1。é", max_size=20))
def test_characters_are_those_of_sacrebleu(text):
    assert CHARACTERS(text) == TokenizerChar()(text).split()


@pytest.mark.full
def test_the_library_says_nothing():
    script = "from layerlab.evaluation.metrics.segmentation import JIEBA; print(JIEBA('法院'))"
    run = empty_python("-W", "error", "-c", script)
    assert run.returncode == 0 and run.stderr == "", run.stderr


def test_jieba_absent_is_said_in_one_line(monkeypatch):
    segmentation._tokenizer.cache_clear()
    monkeypatch.setitem(sys.modules, "jieba", None)
    refuses(r"words of Chinese are found with jieba.*\.\[eval\]", JIEBA, "法院")
