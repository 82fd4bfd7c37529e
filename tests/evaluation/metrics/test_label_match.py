import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from layerlab.evaluation.metrics.label_match import labels_in, only_label, set_f1
from layerlab.evaluation.metrics.mark import Mark

SOME = settings(max_examples=50, deadline=None)

SETS = st.frozensets(st.integers(0, 5))


@SOME
@given(SETS, SETS)
def test_set_f1_is_symmetric_bounded_and_one_only_for_equal_sets(found, gold):
    score = set_f1(found, gold)
    assert score == set_f1(gold, found)
    assert 0 <= score <= 1
    assert (score == 1) == (found == gold)
    assert (score == 0) == (not found & gold and found != gold)


@SOME
@given(SETS, SETS.filter(bool))
def test_set_f1_is_that_of_scikit_learn(found, gold):
    rows = [[[int(label in one) for label in range(6)]] for one in (gold, found)]
    assert set_f1(found, gold) == pytest.approx(
        f1_score(*rows, average="samples", zero_division=0), abs=1e-12
    )


@pytest.mark.parametrize(
    ("output", "mark"),
    [
        ("正确答案：B。", Mark(1.0)),
        ("[正确答案]Ｂ<eoa>", Mark(1.0)),  # full-width
        ("B，因为 A 不对", Mark(0.0)),  # another letter is named too
        ("C", Mark(0.0)),
        ("BBB", Mark(1.0)),
        ("b", Mark(0.0, True)),  # letters in lower case are text
        ("", Mark(0.0, True)),
        ("不知道", Mark(0.0, True)),
    ],
)
def test_letters(output, mark):
    assert only_label(output, "ABCD", "B") == mark


def test_a_label_inside_another_is_found_with_it():
    assert labels_in("合同诈骗", ["诈骗", "合同诈骗"]) == {"诈骗", "合同诈骗"}
