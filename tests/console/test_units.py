"""Numbers as people read them."""

import math

import pytest

from layerlab.console.units import difference


@pytest.mark.parametrize("places", [0, 2, 4])
@pytest.mark.parametrize("value", [-0.0, 0.0, -1e-9, 3e-5, -0.5, 12.3456, -math.inf])
def test_a_difference_has_its_own_sign_and_no_zero_has_a_minus(value, places):
    written = difference(value, places)
    assert written[0] == ("-" if value < 0 else "+")
    assert (float(written) == 0) == (value == 0)
