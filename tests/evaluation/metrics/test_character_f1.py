from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics import CHRF

from layerlab.evaluation.metrics.character_f1 import character_f1

SOME = settings(max_examples=50, deadline=None)

TEXTS = st.text(alphabet="原告被元1２aA，。 ", max_size=20)


def literal(prediction: str, reference: str) -> float:
    """The evaluation of CAIL's reading comprehension, step by step."""
    ours = [one for one in prediction.lower() if one.isdigit() or one.isalpha()]
    theirs = [one for one in reference.lower() if one.isdigit() or one.isalpha()]
    if not ours or not theirs:
        return float(ours == theirs)
    same = sum((Counter(ours) & Counter(theirs)).values())
    if not same:
        return 0.0
    precision, recall = same / len(ours), same / len(theirs)
    return 2 * precision * recall / (precision + recall)


@SOME
@given(TEXTS, TEXTS)
def test_is_the_literal_one_symmetric_and_bounded(ours, theirs):
    score = character_f1(ours, theirs)
    assert score == pytest.approx(literal(ours, theirs), abs=1e-12)
    assert score == character_f1(theirs, ours)
    assert 0 <= score <= 1


@SOME
@given(TEXTS)
def test_equal_texts_and_those_of_other_punctuation(text):
    assert character_f1(text, text) == character_f1(f"《{text}》。", text) == 1


@SOME
@given(TEXTS, TEXTS)
def test_is_the_chrf_of_sacrebleu_where_there_are_characters(ours, theirs):
    """Of letters and digits alone: order 1, no words, precision and recall weighed alike."""
    kept = ["".join(filter(str.isalnum, text)) for text in (ours, theirs)]
    chrf = CHRF(char_order=1, word_order=0, beta=1, lowercase=True)
    if any(kept):
        assert 100 * character_f1(ours, theirs) == pytest.approx(
            chrf.sentence_score(kept[0], [kept[1]]).score, abs=1e-9
        )
