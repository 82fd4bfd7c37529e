import warnings
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics import CHRF

from layerlab.evaluation.metrics import segmentation as words
from layerlab.evaluation.metrics.rouge import RougeN, common_subsequence, rouge
from layerlab.evaluation.metrics.segmentation import CHARACTERS, JIEBA, JIEBA_LINES, LATIN, SPACED

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its patterns hold escapes that Python warns of
    from rouge_chinese import Rouge

SOME = settings(max_examples=50, deadline=None)

KINDS: tuple[RougeN, ...] = ("1", "2", "L")
FILLED = st.lists(st.sampled_from("abcd"), min_size=1, max_size=12).map(" ".join)
SENTENCES = st.lists(st.sampled_from("abcd"), max_size=12).map(" ".join)


def table_length(a: Sequence[Any], b: Sequence[Any]) -> int:
    """The textbook's table, one cell after the other."""
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, one in enumerate(a):
        for j, other in enumerate(b):
            same = table[i][j] + 1
            table[i + 1][j + 1] = same if one == other else max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


def oracle(prediction: list[str], reference: list[str], kind: str) -> float:
    """ROUGE of rouge-chinese, which takes words with spaces between; it knows no empty text."""
    texts = " ".join(prediction), " ".join(reference)
    (found,) = Rouge(metrics=[f"rouge-{kind.lower()}"], stats=["f"]).get_scores(*texts)[:1]
    return float(found[f"rouge-{kind.lower()}"]["f"])


@SOME
@given(st.lists(st.integers(0, 4), max_size=40), st.lists(st.integers(0, 4), max_size=40))
def test_common_subsequence_is_the_tables(a, b):
    assert common_subsequence(a, b) == table_length(a, b)


@SOME
@given(FILLED, FILLED, st.sampled_from(KINDS))
def test_rouge_is_that_of_rouge_chinese(ours, theirs, kind):
    # The constant in the oracle's denominator costs at most 1e-8 / (2 F) * F = 5e-9.
    assert rouge(ours, theirs, kind=kind, segment=SPACED) == pytest.approx(
        oracle(ours.split(), theirs.split(), kind), abs=6e-9
    )


@SOME
@given(SENTENCES, SENTENCES, st.sampled_from(KINDS), st.sampled_from(["distinct", "every"]))
def test_rouge_is_symmetric_and_bounded(ours, theirs, kind, counted):
    score = rouge(ours, theirs, kind=kind, segment=SPACED, counted=counted)
    assert 0 <= score <= 1
    assert score == rouge(theirs, ours, kind=kind, segment=SPACED, counted=counted)


@SOME
@given(SENTENCES.filter(lambda text: len(text.split()) > 1), st.sampled_from(KINDS))
def test_a_text_is_all_of_itself(text, kind):
    assert rouge(text, text, kind=kind, segment=SPACED) == 1
    assert rouge("", text, kind=kind, segment=SPACED) == 0


@SOME
@given(SENTENCES, SENTENCES, st.sampled_from([1, 2]))
def test_every_counts_each_occurrence_once(ours, theirs, length):
    a, b = (
        [tuple(words[i : i + length]) for i in range(len(words) - length + 1)]
        for words in (ours.split(), theirs.split())
    )
    left = list(b)
    shared = [gram for gram in a if gram in left and left.remove(gram) is None]
    literal_f = 2 * len(shared) / (len(a) + len(b)) if a and b else 0.0
    kind: RougeN = "1" if length == 1 else "2"
    assert rouge(ours, theirs, kind=kind, segment=LATIN, counted="every") == pytest.approx(
        literal_f
    )


def test_distinct_and_every_differ_where_words_come_again():
    assert rouge("a a a b", "a b", kind="1", segment=SPACED) == 1
    assert rouge("a a a b", "a b", kind="1", segment=SPACED, counted="every") == pytest.approx(
        4 / 6
    )


def test_the_segmentation_makes_the_figure():
    pytest.importorskip("jieba", reason="jieba is not installed: pip install '.[eval]'")
    ours, theirs = "被告人应当赔偿原告的损失", "被告应当赔偿损失"
    by_words, by_characters = (rouge(ours, theirs, segment=way) for way in (JIEBA, CHARACTERS))
    assert by_words == pytest.approx(oracle(JIEBA(ours), JIEBA(theirs), "L"), abs=6e-9)
    assert by_words != by_characters


LAW = st.text(alphabet="中国人民法院合同 \n。！？?”…a1", max_size=40).filter(str.strip)


@SOME
@given(LAW, LAW)
def test_lines_are_counted_as_rouge_chinese_does_for_lawbench(ours, theirs):
    """As LawBench's scorer calls it: the output of jieba as it is, with its spaces and lines."""
    pytest.importorskip("jieba", reason="jieba is not installed: pip install '.[eval]'")
    cut = words._tokenizer().cut
    raw = (" ".join(cut(ours)), " ".join(cut(theirs)))
    (theirs_f,) = Rouge(metrics=["rouge-l"]).get_scores(*raw)
    assert rouge(ours, theirs, segment=JIEBA_LINES) == pytest.approx(
        theirs_f["rouge-l"]["f"], abs=6e-9
    )


@SOME
@given(*[st.text(alphabet="原告被元12aA ", max_size=20)] * 2)
def test_words_of_one_character_are_the_chrf_of_sacrebleu(ours, theirs):
    """ROUGE-1 that counts every occurrence is chrF of order 1 with equal weights."""
    chrf = CHRF(char_order=1, word_order=0, beta=1)
    score = rouge(ours, theirs, kind="1", segment=CHARACTERS, counted="every")
    assert 100 * score == pytest.approx(chrf.sentence_score(ours, [theirs]).score, abs=1e-9)
