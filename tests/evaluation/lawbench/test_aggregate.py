import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerlab.evaluation.lawbench.aggregate import corpus_f, corpus_mean
from layerlab.evaluation.metrics.edit_f import EditCount, edit_f

COUNTS = st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3), min_size=1, max_size=20)


@settings(max_examples=50, deadline=None)
@given(COUNTS)
def test_the_sum_is_what_is_scored(counts):
    sums = EditCount(*(sum(one[place] for one in counts) for place in range(3)))
    assert corpus_f(counts) == corpus_mean(counts).value == edit_f(sums)
    assert corpus_f(counts) == corpus_f(counts[::-1])
    assert 0 <= corpus_f(counts) <= 1


def test_the_error_is_that_of_leaving_out_one_sentence_after_the_other():
    draw = random.Random(0)
    counts = [[draw.randint(0, 3), draw.randint(0, 6), draw.randint(0, 2)] for _ in range(400)]
    left = [corpus_f(counts[:place] + counts[place + 1 :]) for place in range(400)]
    middle = sum(left) / 400
    jackknife = math.sqrt(399 / 400 * sum((one - middle) ** 2 for one in left))
    # They differ by terms of order 1/n of themselves.
    assert corpus_mean(counts).error == pytest.approx(jackknife, rel=4 / 400)


def test_one_sentence_tells_no_error():
    assert corpus_mean([[1, 2, 3]]).error is None
    assert corpus_mean([[0, 0, 0], [0, 0, 0]]).error is None
