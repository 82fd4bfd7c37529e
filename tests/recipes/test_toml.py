"""A recipe on the page runs again."""

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from layerlab.recipes.toml import write_toml

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
SINGLE = st.one_of(
    st.booleans(),
    st.integers(-(2**60), 2**60),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(codec="utf-8"), max_size=12),
)
VALUES = st.recursive(
    SINGLE,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, min_size=1, max_size=3)
    ),
    max_leaves=6,
)


@given(st.dictionaries(NAMES, VALUES, max_size=5))
def test_what_is_written_reads_back_the_same(recipe):
    assert tomllib.loads(write_toml(recipe)) == recipe


def test_none_is_left_out_wherever_it_stands():
    recipe = {"a": None, "b": {"c": None, "d.e": 1}, "f": [{"g": None, "h": 2}], "i": {}}
    assert write_toml(recipe) == 'b."d.e" = 1\nf = [{ h = 2 }]'
