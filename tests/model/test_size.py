"""Sizes that a user leaves out, and those that cannot be."""

import pytest

from layerlab import UserError
from layerlab.model.size import REFERENCE, shape


def test_what_is_left_out_follows_from_the_rest():
    found = shape(**REFERENCE, inner=8 / 3)
    assert (found.kv_heads, found.head_width) == (4, 64)
    assert found.inner % 16 == 0 and 0 <= found.inner - 256 * 8 / 3 < 16


def test_what_is_given_stays():
    found = shape(**REFERENCE, inner=100, kv_heads=2, head_width=10)
    assert (found.inner, found.kv_heads, found.head_width) == (100, 2, 10)


@pytest.mark.parametrize("width", [48, 256, 4096])
def test_a_whole_multiple_needs_no_rounding(width):
    assert shape(**{**REFERENCE, "width": width}, inner=4.0).inner == 4 * width


@pytest.mark.parametrize("inner", [0.0, -1.0, float("inf"), 1e9])
def test_a_multiple_that_cannot_be_is_refused(inner):
    with pytest.raises(UserError, match="expected a whole number of features, or a multiple"):
        shape(**REFERENCE, inner=inner)


def test_heads_divide_the_width_or_have_their_own():
    with pytest.raises(UserError, match="5 heads do not divide a width of 256; type heads=4"):
        shape(**{**REFERENCE, "heads": 5}, inner=1.0)
    assert shape(**{**REFERENCE, "heads": 5}, inner=1.0, head_width=32).head_width == 32
