import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerlab.evaluation.metrics.prison_term import log_distance, months_in, term_score

SOME = settings(max_examples=50, deadline=None)

MONTHS = st.integers(0, 300)


@pytest.mark.parametrize(
    ("output", "months"),
    [
        ("[刑期]12月<eoa>", 12),
        ("4个月", 4),
        ("判处有期徒刑三年六个月", 6),  # months come before years, as in the source
        ("有期徒刑三年", 36),
        ("二〇一六年三月二日", 3),  # a date is read as a term, as in the source
        ("拘役十五天", None),
        ("", None),
    ],
)
def test_months(output, months):
    assert months_in(output) == months


@SOME
@given(MONTHS, MONTHS)
def test_distance_is_one(ours, gold):
    assert log_distance(ours, gold) == log_distance(gold, ours) >= 0
    assert (log_distance(ours, gold) == 0) == (ours == gold)


@SOME
@given(st.lists(st.tuples(st.none() | MONTHS, MONTHS), min_size=1, max_size=10))
def test_the_mean_of_the_marks_is_the_sources_score(pairs):
    outputs = ["不构成犯罪" if ours is None else f"{ours}个月" for ours, _ in pairs]
    marks = [term_score(one, gold) for one, (_, gold) in zip(outputs, pairs, strict=True)]
    costs = [
        math.log(216) if ours is None else abs(math.log(gold + 1) - math.log(ours + 1))
        for ours, gold in pairs
    ]
    literal = (math.log(216) - sum(costs) / len(costs)) / math.log(216)
    assert sum(mark.score for mark in marks) / len(marks) == pytest.approx(literal, abs=1e-12)
    assert [mark.abstained for mark in marks] == [ours is None for ours, _ in pairs]
    assert all(mark.score <= 1 for mark in marks)


def test_a_term_beyond_all_bounds_is_worse_than_none():
    assert term_score("99999个月", 4).score < 0
    assert term_score("9" * 5000 + "月", 4).score < 0
