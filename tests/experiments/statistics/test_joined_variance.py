"""Intervals of sums of estimates: bounds of degrees, p and width agree, no false word more."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from layerlab.experiments.statistics.joined_variance import half_width, join, p_of, satterthwaite

VARIANCE, DEGREES = st.floats(0.01, 3), st.integers(1, 60)
LEVELS = st.floats(1e-6, 0.2)


@given(VARIANCE, VARIANCE, DEGREES, DEGREES)
def test_satterthwaite_lies_between_the_least_and_the_sum_of_degrees(one, other, few, many):
    error, freedom = satterthwaite([(one, few), (other, many)])
    assert error == pytest.approx(math.sqrt(one + other))
    assert min(few, many) * (1 - 1e-12) <= freedom <= (few + many) * (1 + 1e-12)


@given(VARIANCE, VARIANCE, DEGREES, DEGREES, LEVELS)
def test_degrees_and_p_are_those_of_the_width(one, other, few, many, alpha):
    parts = [(one, few), (other, many)]
    width = half_width(parts, alpha)
    error, freedom = join(parts, alpha)
    assert min(few, many) * (1 - 1e-6) <= freedom <= max(few, many) * (1 + 1e-6)
    assert stats.t.isf(alpha / 2, freedom) * error == pytest.approx(width, rel=1e-6)
    assert p_of(parts, width) == pytest.approx(alpha, rel=1e-6)


@given(VARIANCE, DEGREES, st.floats(0, 1e3))
def test_of_one_estimate_it_is_the_t_test(variance, degrees, distance):
    wanted = 2 * stats.t.sf(distance / math.sqrt(variance), degrees)
    assert p_of([(variance, degrees)], distance) == pytest.approx(wanted, rel=1e-9)
    assert p_of([(variance, degrees), (0.0, 200)], distance) == pytest.approx(wanted, rel=1e-9)


def test_p_falls_with_the_distance_down_to_what_can_be_written():
    parts = [(1.0, 2), (0.1, 255)]
    found = [p_of(parts, distance) for distance in (0.0, 0.1, 1, 10, 1e3, 1e8, 1e200)]
    assert found[0] == 1 and found == sorted(found, reverse=True) and found[-1] >= 0
    assert p_of([(1.0, 500), (0.1, 900)], 1e4) == pytest.approx(0, abs=1e-290)


# Satterthwaite's degrees gave up to 2.4 times as many false words at 5 %, and 20 times at 0.3 %.
@pytest.mark.few(20)
@pytest.mark.parametrize("alpha", [0.05, 0.0125, 0.003])
@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
@pytest.mark.parametrize("share", [0.01, 0.1, 0.3, 1.0, 10.0])
def test_false_words_are_no_more_than_asked_for(seeds, share, alpha):
    rng, draws, blocks = np.random.default_rng(1), 100_000, 64
    means = rng.normal(0, math.sqrt(1 + share), draws)
    own = rng.chisquare(seeds - 1, draws) / (seeds - 1)
    text = share * rng.chisquare(blocks - 1, draws) / (blocks - 1)
    quantiles = (stats.t.isf(alpha / 2, seeds - 1), stats.t.isf(alpha / 2, blocks - 1))
    widths = np.hypot(*(q * np.sqrt(one) for q, one in zip(quantiles, (own, text), strict=True)))
    assert half_width([(own[0], seeds - 1), (text[0], blocks - 1)], alpha) == pytest.approx(
        widths[0]
    )
    false = int((np.abs(means) > widths).sum())
    assert stats.binomtest(false, draws, alpha, alternative="greater").pvalue > 1e-3
