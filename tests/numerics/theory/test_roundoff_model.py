import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layerlab.numerics.theory.roundoff_model import (
    OPERATIONS,
    Arithmetic,
    mixed,
    uniform,
)
from tests.support.refused import refuses


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 200), st.sampled_from([2, 4, 8, 11]), st.integers(0, 200))
def test_lemma_4_2_growth_covers_products_and_quotients_and_is_below_gamma(n, t, quotients):
    unit = 2.0**-t
    growth = uniform(unit).growth(sum=n).item()
    low = min(quotients, n)
    for sign in (1, -1):
        product = (1 + sign * unit) ** (n - low) / (1 - sign * unit) ** low
        assert abs(product - 1) <= growth * (1 + 1e-12)
    if n * unit < 1:
        assert growth <= n * unit / (1 - n * unit) * (1 + 1e-12)
    assert growth >= uniform(unit).linear().growth(sum=n).item() == n * unit


def test_growth_adds_operations_with_their_own_units():
    arithmetic = Arithmetic(product=0.25, sum=0.125)
    found = arithmetic.growth(product=2, sum=torch.tensor([0.0, 3.0], dtype=torch.float64))
    expected = [0.75**-2 - 1, 0.75**-2 * 0.875**-3 - 1]
    assert found.tolist() == pytest.approx(expected, rel=1e-14)
    assert arithmetic.growth(residual=5).item() == 0


def test_uniform_rounds_everything_and_mixed_stores_in_the_lower_format():
    same, two = uniform(0.25).units(), mixed(0.25, 0.125).units()
    assert {name for name in OPERATIONS if same[name] == 0} == {"store", "constant"}
    assert {name for name in OPERATIONS if two[name] == 0.125} == {
        "product",
        "sum",
        "norm",
        "softmax",
        "activation",
    }


@pytest.mark.parametrize("unit", [-0.1, 1.0, math.inf, math.nan])
def test_a_unit_that_is_none_is_refused(unit):
    refuses("is no unit roundoff; give a number from 0", Arithmetic, sum=unit)
