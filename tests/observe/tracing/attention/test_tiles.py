"""Parts of an attention are parts of its matrix, and rules that a mask says are its own."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layerlab.observe.tracing.attention.tiles import all_triangular, cut, triangular
from tests.observe.tracing.attention.test_record import random, records

TOKENS = 12


@given(drawn=records(), rows=st.tuples(st.integers(0, 8), st.integers(1, 9)))
@settings(max_examples=200)
def test_a_part_is_that_of_the_matrix_and_zero_outside_of_its_keys(drawn, rows):
    record, expected = drawn
    rows = slice(rows[0] % record.tokens, sum(rows))
    keys, part = cut(record, rows, slice(1, 3))
    rest = expected[1:3, rows].clone()
    torch.testing.assert_close(part.weights(dtype=torch.float64), rest[..., keys])
    rest[..., keys] = 0
    assert not rest.any()
    last = rows.indices(record.tokens)[1] + record.keys - record.tokens
    assert not record.causal or keys.stop == last
    if record.window is not None:
        assert keys.start == max(0, rows.start + record.keys - record.tokens - record.window + 1)


def mask(window, older=0):
    """Return which keys a row may use under causality, and a window if there is one."""
    row, column = torch.arange(older, TOKENS + older)[:, None], torch.arange(TOKENS + older)
    return ((column <= row) & (column > row - window))[None]


def masked(bias, older=0):
    return replace(random(tokens=TOKENS + older), query=random().query, causal=False, bias=bias)


@pytest.mark.parametrize("window", [1, 5, 11, 12, 99])
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("older", [0, 2])
def test_the_rules_that_a_mask_says_are_found(window, added, older):
    seen = mask(window, older)
    bias = torch.zeros(seen.shape).masked_fill(~seen, -torch.inf) if added else seen
    found = triangular(masked(bias, older))
    assert found.causal and found.bias is None
    assert found.window == (window if window < TOKENS + older else None)
    torch.testing.assert_close(found.weights(), masked(bias, older).weights())


def test_a_mask_that_says_more_is_kept():
    seen = mask(5)
    less, more = seen.clone(), seen.clone()
    less[0, 7, 4], more[0, 2, 3] = False, True
    for bias, causal in ((less, True), (more, False)):
        found = triangular(masked(bias))
        assert found.bias is bias and found.causal == causal and found.window is None
    added = torch.zeros(1, TOKENS, TOKENS).masked_fill(~seen, -torch.inf)
    added[0, 7, 5] = 0.5
    found = triangular(masked(added))
    assert found.bias is added and found.causal and found.window is None


def test_fewer_keys_than_rows_are_of_no_order():
    # As in the attention of a decoder to what an encoder gave.
    record = replace(random(), key=random().key[:, :5], value=None, causal=False)
    assert triangular(record) == record
    open_ = replace(record, bias=torch.ones(1, TOKENS, 5, dtype=torch.bool).tril(-7))
    assert not triangular(open_).causal


def test_masks_of_several_records_are_each_its_own():
    narrow, wide = mask(3), mask(8)
    given = [masked(narrow), masked(wide), masked(wide), masked(narrow.clone())]
    found = all_triangular([*given, replace(given[0], causal=True)])
    assert [one.window for one in found[:4]] == [3, 8, 8, 3]
    # A record that says it is causal is not asked, and has the mask of the first where it is equal.
    assert found[4].bias is narrow
    ahead = masked(mask(5).roll(1, -1))
    assert not all_triangular([replace(ahead, causal=True), ahead])[1].causal
    odd = mask(5)
    odd[0, 7, 4] = False
    first, other, equal = all_triangular([masked(odd), masked(wide), masked(odd.clone())])
    assert first.bias is odd and other.bias is None and equal.bias is odd
