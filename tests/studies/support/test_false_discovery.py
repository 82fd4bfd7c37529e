"""False-discovery rates: of Benjamini and Hochberg, and of claims with several pairs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerlab.studies.support.false_discovery import find_p_value, format_rate, rates

CHANCES = st.lists(st.none() | st.floats(min_value=0, max_value=1), max_size=12)


@given(CHANCES)
def test_a_rate_is_never_below_its_p_nor_above_that_of_bonferroni(chances):
    count = sum(one is not None for one in chances)
    for p, rate in zip(chances, rates(chances), strict=True):
        assert (p is None) is (rate is None)
        if p is not None:
            assert p - 1e-12 <= rate <= min(1, p * count) + 1e-12


@given(CHANCES, st.floats(min_value=0.01, max_value=0.5))
def test_what_a_rate_calls_a_discovery_is_what_the_step_up_calls_one(chances, level):
    """Literally: the largest k with p_(k) <= k level / m, and all up to there."""
    known = sorted(one for one in chances if one is not None)
    steps = [k for k, p in enumerate(known, 1) if p <= k * level / len(known)]
    limit = known[steps[-1] - 1] if steps else -1.0
    for p, rate in zip(chances, rates(chances), strict=True):
        if p is not None and abs(rate - level) > 1e-9:
            assert (rate <= level) is (p <= limit)


@pytest.mark.parametrize(
    ("word", "found"), [("fails", 0.06), ("holds", 0.02), ("not decided", 0.02)]
)
def test_what_fails_by_one_of_its_pairs_had_as_many_chances(word, found):
    claim = {"verdict": word, "p": 0.02, "pairs": [{}, {}, {}]}
    assert find_p_value(claim) == pytest.approx(found)
    assert find_p_value({**claim, "p": None}) is None
    assert find_p_value({"verdict": "fails", "p": 0.5, "pairs": [{}] * 3}) == 1


def test_a_table_has_two_digits_or_a_dash():
    assert [format_rate(one) for one in (None, 0.02345, 1.0)] == ["-", "0.023", "1"]
