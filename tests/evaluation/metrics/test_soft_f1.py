import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerlab.evaluation.metrics.character_f1 import character_f1
from layerlab.evaluation.metrics.soft_f1 import soft_f1, soft_f1_in_order

SOME = settings(max_examples=50, deadline=None)

WORDS = st.text(alphabet="甲乙丙1", min_size=1, max_size=4)
NAMED = st.dictionaries(st.sampled_from(["时间", "地点", "受害人"]), WORDS, max_size=3)
ORDERED = st.lists(WORDS, max_size=4)


def literal(intersected: list[float], found: int, gold: int) -> float:
    """LawBench's soft F1, with its small constant."""
    precision = sum(intersected) / found if found else 0
    recall = sum(intersected) / gold if gold else 0
    return 2 * precision * recall / (precision + recall + 1e-10)


@SOME
@given(NAMED, NAMED)
def test_named_parts(found, gold):
    score = soft_f1(found, gold)
    if found or gold:
        shared = [character_f1(gold[name], one) for name, one in found.items() if name in gold]
        # The constant is 1e-10 of a denominator of at least the score itself.
        assert score == pytest.approx(literal(shared, len(found), len(gold)), abs=1e-10)
    assert score == pytest.approx(soft_f1(gold, found), abs=1e-15)
    assert 0 <= score <= 1
    assert soft_f1(gold, gold) == 1


@SOME
@given(ORDERED, ORDERED)
def test_parts_in_order(found, gold):
    score = soft_f1_in_order(found, gold)
    if found or gold:
        shared = [character_f1(*pair) for pair in zip(gold, found, strict=False)]
        assert score == pytest.approx(literal(shared, len(found), len(gold)), abs=1e-10)
    assert 0 <= score <= 1
    assert soft_f1_in_order(gold, gold) == 1


def test_a_part_at_another_place_is_another_part():
    assert soft_f1_in_order(["甲", "乙"], ["乙", "甲"]) == 0
    assert soft_f1({"时间": "甲"}, {"地点": "甲"}) == 0
