import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import matthews_corrcoef

from layerlab.evaluation.metrics.matthews import matthews

SOME = settings(max_examples=50, deadline=None)

PAIRS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30)


@SOME
@given(PAIRS)
def test_is_that_of_scikit_learn(pairs):
    gold, answered = map(list, zip(*pairs, strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns where there is only one class
        oracle = matthews_corrcoef(gold, answered)
    assert matthews(gold, answered) == pytest.approx(oracle, abs=1e-12)


@SOME
@given(PAIRS)
def test_is_symmetric_and_at_most_one(pairs):
    gold, answered = map(list, zip(*pairs, strict=True))
    score = matthews(gold, answered)
    assert score == pytest.approx(matthews(answered, gold), abs=1e-15)
    assert -1 - 1e-12 <= score <= 1 + 1e-12
    assert matthews(gold, gold) == pytest.approx(float(len(set(gold)) > 1))


def test_opposite_answers():
    assert matthews([0, 1], [1, 0]) == -1
