from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerlab.evaluation.metrics.rouge import Kind, common_subsequence, rouge
from layerlab.evaluation.metrics.words import CHARACTERS, JIEBA, LATIN, SPACED

SOME = settings(max_examples=50, deadline=None)

KINDS: tuple[Kind, ...] = ("1", "2", "L")
SENTENCES = st.lists(st.sampled_from("abcd"), max_size=12).map(" ".join)


def table_length(a: Sequence[Any], b: Sequence[Any]) -> int:
    """The textbook's table, one cell after the other."""
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, one in enumerate(a):
        for j, other in enumerate(b):
            same = table[i][j] + 1
            table[i + 1][j + 1] = same if one == other else max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


def literal(prediction: list[str], reference: list[str], kind: str) -> float:
    """ROUGE as rouge-chinese has it, step by step: sets of n-grams, and its small constant."""
    if kind == "L":
        found, gold = len(prediction), len(reference)
        shared = table_length(prediction, reference)
    else:
        n = int(kind)
        ours = {tuple(prediction[i : i + n]) for i in range(len(prediction) - n + 1)}
        theirs = {tuple(reference[i : i + n]) for i in range(len(reference) - n + 1)}
        found, gold, shared = len(ours), len(theirs), len(ours & theirs)
    precision = shared / found if found else 0.0
    recall = shared / gold if gold else 0.0
    return 2.0 * (precision * recall) / (precision + recall + 1e-8)


@SOME
@given(st.lists(st.integers(0, 4), max_size=40), st.lists(st.integers(0, 4), max_size=40))
def test_common_subsequence_is_the_tables(a: list[int], b: list[int]) -> None:
    assert common_subsequence(a, b) == table_length(a, b)


@SOME
@given(SENTENCES, SENTENCES, st.sampled_from(KINDS))
def test_rouge_is_the_literal_one(ours: str, theirs: str, kind: Kind) -> None:
    # The constant in the oracle's denominator costs at most 1e-8 / (2 F) * F = 5e-9.
    assert rouge(ours, theirs, kind=kind, words=SPACED) == pytest.approx(
        literal(ours.split(), theirs.split(), kind), abs=6e-9
    )


@SOME
@given(SENTENCES, SENTENCES, st.sampled_from(KINDS), st.sampled_from(["distinct", "every"]))
def test_rouge_is_symmetric_and_bounded(ours: str, theirs: str, kind: Kind, counted: Any) -> None:
    score = rouge(ours, theirs, kind=kind, words=SPACED, counted=counted)
    assert 0 <= score <= 1
    assert score == rouge(theirs, ours, kind=kind, words=SPACED, counted=counted)


@SOME
@given(SENTENCES.filter(lambda text: len(text.split()) > 1), st.sampled_from(KINDS))
def test_a_text_is_all_of_itself(text: str, kind: Kind) -> None:
    assert rouge(text, text, kind=kind, words=SPACED) == 1
    assert rouge("", text, kind=kind, words=SPACED) == 0


@SOME
@given(SENTENCES, SENTENCES, st.sampled_from([1, 2]))
def test_every_counts_each_occurrence_once(ours: str, theirs: str, length: int) -> None:
    a, b = (
        [tuple(words[i : i + length]) for i in range(len(words) - length + 1)]
        for words in (ours.split(), theirs.split())
    )
    left = list(b)
    shared = [gram for gram in a if gram in left and left.remove(gram) is None]
    literal_f = 2 * len(shared) / (len(a) + len(b)) if a and b else 0.0
    kind: Kind = "1" if length == 1 else "2"
    assert rouge(ours, theirs, kind=kind, words=LATIN, counted="every") == pytest.approx(literal_f)


def test_distinct_and_every_differ_where_words_come_again() -> None:
    assert rouge("a a a b", "a b", kind="1", words=SPACED) == 1
    assert rouge("a a a b", "a b", kind="1", words=SPACED, counted="every") == pytest.approx(4 / 6)


def test_the_segmentation_makes_the_figure() -> None:
    pytest.importorskip("jieba", reason="jieba is not installed: pip install 'layerlab[eval]'")
    ours, theirs = "被告人应当赔偿原告的损失", "被告应当赔偿损失"
    by_words, by_characters = (rouge(ours, theirs, words=way) for way in (JIEBA, CHARACTERS))
    assert by_words == pytest.approx(literal(JIEBA(ours), JIEBA(theirs), "L"), abs=6e-9)
    assert by_words != by_characters
