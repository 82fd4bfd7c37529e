"""The verdict on a record says what its numbers say."""

from math import inf
from typing import Any

import pytest

from layerlab.numerics.recorded.recorded_gap import Cause, ProfileFit, RecordedToken
from layerlab.numerics.recorded.rounding_limits import LEAST
from tests.numerics.recorded.recording import tell

FAR = RecordedToken(text=1, place=2, token=3, error=-4.0)


def blame(left: float, whole: float, **given: Any) -> Cause:
    return Cause(name="it", left=left, whole=whole, **given)


@pytest.mark.parametrize(
    ("left", "whole", "explains"),
    [
        (0.9, 2.0, True),
        (0.9, 1.7, False),  # more than a half of it
        (1.1, 3.0, False),  # and more than rounding makes
        (1.5, 20.0, True),  # less than a tenth, and twice as much
        (1.5, 12.0, False),
        (2.1, 100.0, False),
        (0.0, 0.0, False),
    ],
)
def test_a_mistake_explains_what_it_leaves_little_of(left, whole, explains):
    cause = blame(left, whole)
    assert tell(causes=(cause,)).cause == (cause if explains else None)
    assert tell(causes=(blame(8.0, 9.0), cause)).cause is None  # the first leaves least
    sure = blame(left, whole, sure=True)
    assert tell(causes=(sure,)).cause == sure
    assert blame(0.0, 0.0).part == inf


def test_quantization_is_no_bug_and_what_is_far_out_beside_it_is():
    stored = blame(0.5, 1.0, sure=True, is_quantized=True)
    assert not tell(causes=(stored,)).is_bug
    assert tell(causes=(stored,), outliers=(FAR,)).is_bug
    assert str(tell(causes=(stored,))).startswith("quantization, no bug: it, which leaves 0.5 of 1")
    assert tell(causes=(blame(0.5, 1.0, sure=True),)).is_bug
    assert tell(is_beyond=True).is_bug and tell(outliers=(FAR,)).is_bug and not tell().is_bug


def test_the_share_of_a_profile_is_the_larger_of_the_two():
    for one, other in ((0.9, 0.1), (0.1, 0.9)):
        assert ProfileFit(name="", emulated=one, rms=1.0, real=other).share == 0.9


def test_what_no_profile_makes_has_fewer_or_more_digits():
    small, large = (str(tell(rms=one, made=0.001, fits=False)) for one in (0.005, 0.5))
    # Smaller than the floor is no error that could be seen.
    assert "not that of vllm, which makes 0.01 nats, and 0.005 were recorded" in small
    assert "a format of more digits" in small
    assert "0.5 were recorded: that of a format of fewer digits" in large


def test_a_profile_is_named_by_digits_of_enough_tokens_alone():
    assert str(tell()).startswith("rounding: vllm explains 90% of what was recorded")
    assert "23 tokens are too few to tell whose (24 are needed)" in str(tell(tokens=LEAST - 1))
    assert str(tell(0.06)).startswith("rounding: vllm explains 6%")
    assert "no profile fits by its digits, vllm comes nearest" in str(tell(0.04))


def test_what_is_beyond_is_its_size_or_its_mean():
    biased = tell(is_beyond=True, bias=-0.5)
    assert "rounding: a mean of -0.5 nats, and rounding makes 0.1; none that was" in str(biased)
    large = tell(is_beyond=True, bias=-0.5, rms=3.0)
    assert "rounding: 3 nats, and rounding makes at most 1; none that was" in str(large)


def test_only_what_leaves_half_comes_nearest():
    for left, comes in ((1.4, True), (1.6, False)):
        found = tell(is_beyond=True, rms=3.0, causes=(blame(left, 3.0),))
        assert (f"it leaves {left}, and comes nearest" in str(found)) == comes


@pytest.mark.parametrize(("share", "left"), [(0.75, "25.0%"), (-3.0, "100.0%"), (1.0, "0.0%")])
def test_what_is_left_is_no_more_than_there_was(share, left):
    size = {"25.0%": 2, "100.0%": 4, "0.0%": 0}[left]
    line = f"what is left        {left} of the squared difference from float32, by the digits of "
    assert f"{line}vllm: RMS {size} nats" in str(tell(share, rms=4.0))
