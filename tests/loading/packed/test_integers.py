import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from layerlab.loading.packed.integers import read_integers


@st.composite
def rows(draw):
    bits, turns = draw(st.integers(1, 8)), draw(st.integers(1, 6))
    numbers = st.integers(0, (1 << bits) - 1)
    return bits, draw(st.lists(numbers, min_size=32 * turns, max_size=32 * turns))


@given(rows())
def test_numbers_are_read_as_they_follow_each_other_in_one_large_number(drawn):
    bits, numbers = drawn
    whole = sum(one << (bits * place) for place, one in enumerate(numbers))
    data = bytearray(whole.to_bytes(bits * len(numbers) // 8, "little"))
    for kind in (torch.int32, torch.uint8):
        words = torch.frombuffer(data, dtype=kind)
        assert read_integers(words[None], bits).tolist() == [numbers]
        assert read_integers(words.expand(2, -1), bits).tolist() == [numbers, numbers]
        assert read_integers(words.expand(1, 2, -1), bits).tolist() == [[numbers, numbers]]


@pytest.mark.parametrize("bits", [0, 3, 9, 16])
def test_a_row_that_ends_within_a_number_is_refused(bits):
    with pytest.raises(ValueError, match=f"no row of numbers of {bits} bits"):
        read_integers(torch.zeros(1, 4, dtype=torch.int32), bits)
