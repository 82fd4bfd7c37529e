"""The exact test against guessing, beside scipy's and beside every outcome counted out."""

from itertools import product
from math import prod

import numpy as np
import pytest
from scipy.stats import binomtest

from layerlab.evaluation.metrics.guessing import STEPS, Guesses, guessing_p


@pytest.mark.parametrize(("right", "n", "chance"), [(0, 5, 0.5), (8, 10, 0.5), (400, 1319, 0.25)])
def test_of_equal_chances_it_is_the_binomial_test(right, n, chance):
    oracle = binomtest(right, n, chance, alternative="greater").pvalue
    assert guessing_p([Guesses(right, [(chance, n)])]) == pytest.approx(oracle, rel=1e-10)


def counted_out(parts: list[Guesses]) -> float:
    """The same probability, over all outcomes of all questions."""
    total = sum(one.weight for one in parts)
    chances = [chance for one in parts for chance, count in one.chances for _ in range(count)]
    worth = [one.weight / total / one.n for one in parts for _ in range(one.n)]
    scored = sum(one.right * one.weight / total / one.n for one in parts)
    found = 0.0
    for outcome in product((0, 1), repeat=len(chances)):
        if np.dot(outcome, worth) >= scored - 1e-12:
            found += prod(c if o else 1 - c for c, o in zip(chances, outcome, strict=True))
    return found


def test_of_unequal_chances_it_is_every_outcome_counted_out():
    one = Guesses(4, [(0.2, 3), (0.5, 4), (1.0, 1)])
    assert guessing_p([one]) == pytest.approx(counted_out([one]), rel=1e-12)


def test_subjects_that_count_alike_are_weighed_as_the_average_weighs_them():
    parts = [Guesses(3, [(0.25, 4)]), Guesses(3, [(0.5, 7)]), Guesses(2, [(0.25, 3)])]
    p = guessing_p(parts)
    assert p == pytest.approx(counted_out(parts), abs=1e-9)
    assert p != pytest.approx(guessing_p([Guesses(8, [(0.25, 7), (0.5, 7)])]), rel=0.01)


@pytest.mark.full
def test_rounding_up_never_makes_it_smaller():
    draw = np.random.default_rng(0)
    for _ in range(20):
        sizes = draw.integers(1, 5, size=3)
        parts = [Guesses(int(draw.integers(0, n + 1)), [(0.3, int(n))]) for n in sizes]
        p, exact = guessing_p(parts), counted_out(parts)
        assert exact - 1e-12 <= p <= exact + 1e-6


@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.0, 3.0)])
def test_whoever_has_nothing_right_is_not_above_chance(weights):
    parts = [Guesses(0.0, [(0.25, 4)], weight) for weight in weights]
    assert guessing_p(parts) == pytest.approx(1.0)


def test_questions_that_no_guess_answers_count_for_the_model():
    written = Guesses(1, [(0.0, 10)])
    assert guessing_p([written]) == pytest.approx(0.0, abs=1e-12)
    assert guessing_p([]) == 1.0 and guessing_p([Guesses(0, [(0.5, 3)])]) == 1.0


def test_many_subjects_are_quick_and_sharp():
    parts = [Guesses(60, [(0.25, 200)]) for _ in range(30)] + [Guesses(30, [(0.25, 120)])] * 37
    normal = guessing_p(parts)
    assert 0 < normal < 1e-4 and STEPS == 1 << 18
