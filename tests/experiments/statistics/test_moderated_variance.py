"""Moderated variances against limma 3.54.1 (Bioconductor), run on the tables that stand here."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import polygamma

from layerlab.experiments.statistics.moderated_variance import (
    Prior,
    inverse_trigamma,
    moderate,
    prior,
)

# Six rows of four values: a tight one, a wide one, and others between.
TABLE = np.array(
    [
        [-0.41, 0.12, 0.33, -0.02],
        [1.21, 0.87, 1.65, 1.02],
        [0.05, -0.61, 0.44, 1.39],
        [-2.1, 0.3, 1.7, 3.9],
        [0.21, 0.19, 0.24, 0.22],
        [0.9, 0.1, -0.3, 0.5],
    ]
)
VARIANCES = st.lists(st.floats(1e-6, 1e3), min_size=2, max_size=12)


def test_prior_and_posterior_are_those_of_limmas_squeeze_var():
    given = [0.5, 1.2, 0.8, 2.5, 0.3, 7.0]
    found = prior(given, [4] * 6)
    assert found.variance == pytest.approx(1.162582754, rel=1e-8)
    assert found.freedom == pytest.approx(3.953672035, rel=1e-8)
    squeezed = [moderate(one, 4, found) for one in given]
    limma = [0.8293616953, 1.1814003496, 0.9802354043, 1.8351864218, 0.7287792226, 4.0982920566]
    assert squeezed == pytest.approx(limma, rel=1e-8)


def test_variances_that_differ_by_chance_alone_become_one():
    given = [1.0, 1.1, 0.9, 1.05]
    found = prior(given, [6] * 4)
    assert math.isinf(found.freedom) and found.variance == pytest.approx(1.0125)
    assert [moderate(one, 6, found) for one in given] == pytest.approx([1.0125] * 4)


def test_moderated_t_is_that_of_limmas_e_bayes():
    found = prior(TABLE.var(1, ddof=1), [3] * 6)
    assert found.freedom == pytest.approx(0.69836272036, rel=1e-8)
    assert found.variance == pytest.approx(0.02814609326, rel=1e-8)
    post = [moderate(one, 3, found) for one in TABLE.var(1, ddof=1)]
    t = TABLE.mean(1) / np.sqrt(np.array(post) / 4)
    limma_t = [0.03446481921, 7.58151892882, 0.83935488603, 0.83805249097, 5.71238044196]
    assert t[:5] == pytest.approx(limma_t, rel=1e-8)
    p = 2 * stats.t.sf(np.abs(t), 3 + found.freedom)
    limma_p = [0.974285320618, 0.002209304431, 0.452088943060, 0.452734616881, 0.005875061695]
    assert p[:5] == pytest.approx(limma_p, rel=1e-8)


@given(st.floats(1e-4, 1e6))
def test_trigamma_is_inverted(value):
    assert float(polygamma(1, inverse_trigamma(value))) == pytest.approx(value, rel=1e-7)


@given(VARIANCES, st.integers(1, 20))
def test_a_moderated_variance_lies_between_its_own_and_the_common_one(given, freedom):
    found = prior(given, [freedom] * len(given))
    for one in given:
        low, high = sorted((one, found.variance))
        assert low * (1 - 1e-9) <= moderate(one, freedom, found) <= high * (1 + 1e-9)


@given(VARIANCES, st.floats(1e-3, 1e3))
def test_a_unit_changes_the_variance_and_not_the_degrees(given, unit):
    one, other = (
        prior([value * factor for value in given], [4] * len(given)) for factor in (1, unit)
    )
    assert other.freedom == pytest.approx(one.freedom, rel=1e-6)
    assert other.variance == pytest.approx(one.variance * unit, rel=1e-6)


def test_what_has_no_degree_of_freedom_does_not_count():
    assert prior([1.0, 2.0, 99.0], [4, 4, 0]) == prior([1.0, 2.0], [4, 4])
    assert moderate(0.0, 0, Prior(2.0, 5.0)) == 2.0
