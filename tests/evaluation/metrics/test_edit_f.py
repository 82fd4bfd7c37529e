import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerlab.evaluation.metrics.edit_f import EditCount, edit_count, edit_f, edits

SOME = settings(max_examples=50, deadline=None)

TEXTS = st.text(alphabet="指控事实施", max_size=12)
COUNTS = st.builds(EditCount, *[st.integers(0, 9)] * 3)


def literal(count: EditCount) -> float:
    """The F of the source's comparison of edits, step by step."""
    precision = count.right / (count.right + count.needless) if count.needless else 1.0
    recall = count.right / (count.right + count.missed) if count.missed else 1.0
    below = 0.25 * precision + recall
    return 1.25 * precision * recall / below if precision + recall else 0.0


@SOME
@given(TEXTS, TEXTS)
def test_edits_turn_one_text_into_the_other(source, target):
    made = source
    for start, end, text in sorted(edits(source, target), reverse=True):
        made = made[:start] + text + made[end:]
    assert made == target
    assert edits(source, source) == set()


@SOME
@given(COUNTS)
def test_f_is_the_literal_one(count):
    assert edit_f(count) == pytest.approx(literal(count), abs=1e-12)
    assert 0 <= edit_f(count) <= 1


@SOME
@given(COUNTS.filter(lambda count: count.needless > count.missed and count.right > 0))
def test_a_needless_edit_costs_more_than_a_missed_one(count):
    assert edit_f(count) < edit_f(EditCount(count.right, count.missed, count.needless))


@SOME
@given(TEXTS.filter(bool), TEXTS.filter(bool))
def test_the_reference_is_all_right_and_the_source_is_all_missed(source, reference):
    right = edit_count(source, reference, reference)
    assert right == (len(edits(source, reference)), 0, 0)
    untouched = edit_count(source, source[: len(reference) + 5], reference)
    assert untouched.right == 0 or len(source) > len(reference) + 5


def test_long_outputs_are_cut_and_empty_ones_are_words():
    long = edit_count("指控实施", "指控事实" + "吗" * 100, "指控事实")
    assert long == edit_count("指控实施", "指控事实" + "吗" * 5, "指控事实")
    empty = edit_count("指控实施", " \n", "指控事实")
    assert empty == edit_count("指控实施", "无内容", "指控事实")
