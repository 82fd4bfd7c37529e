"""Twins for studies: what is equal between arms, and what their differences are said to be."""

import numpy as np
import pytest
import torch

from layerlab.studies import twin
from layerlab.studies.statistic import Interval
from layerlab.studies.work import Draw

SIZES = {"layers": 1, "width": 16, "updates": 2}


def test_a_seed_gives_the_same_twin_and_another_seed_another():
    one, again, other = (twin.taught("pangu-pi", seed, **SIZES) for seed in (1, 1, 2))
    assert one.nats == again.nats != other.nats
    assert torch.equal(one.held, again.held) and torch.equal(one.held, other.held)
    assert one.held.shape == (twin.HELD, twin.CONTEXT)
    pairs = zip(one.subject.model.parameters(), again.subject.model.parameters(), strict=True)
    assert all(torch.equal(left, right) for left, right in pairs)


def test_arms_start_alike_and_have_as_many_parameters():
    # PanGu-pi begins as the Llama block, so before training both say the same.
    sizes = {**SIZES, "width": 64}
    plain, both = (twin.taught(arm, 3, **sizes) for arm in (twin.PLAIN, "pangu-pi"))
    counts = [sum(p.numel() for p in one.subject.model.parameters()) for one in (plain, both)]
    assert counts[0] == pytest.approx(counts[1], rel=0.01)
    assert plain.nats == pytest.approx(both.nats, rel=0.01)


def test_readings_have_a_row_for_every_seed():
    draw = Draw(count=2, generator=torch.Generator().manual_seed(0))
    found = twin.readings(draw, twin.PLAIN, **SIZES)
    assert found["nats"].shape == (2,) and found["layers"].shape == (2, 2, 2)
    assert found["nats"].unique().numel() == 2
    assert ((found["layers"] > 0) & (found["layers"] <= 1)).all()


def test_intervals_are_students():
    ours, theirs = np.array([1.0, 2.1, 3.0]), np.array([1.1, 2.2, 3.2])
    found = twin.over_seeds(ours, theirs)
    # t of 2 degrees at 97.5 % is 4.3027; the differences spread by sqrt(1/300).
    half = 4.302653 * (1 / 300) ** 0.5 / 3**0.5
    assert found.value == pytest.approx(-0.4 / 3)
    assert (found.low, found.high) == pytest.approx((-0.4 / 3 - half, -0.4 / 3 + half))
    wider = twin.over_seeds(ours, theirs, comparisons=4)
    assert wider.low < found.low and wider.high > found.high


def test_equal_seeds_leave_no_spread():
    values = np.array([1.0, 2.0, 4.0])
    assert twin.over_seeds(values, values) == Interval(0.0, 0.0, 0.0)
    found = twin.ratio(3 * values, values)
    assert (found.value, found.low, found.high) == pytest.approx((3, 3, 3))


def test_a_quotient_and_its_inverse_mirror_each_other():
    ours, theirs = np.array([1.0, 2.0, 4.0]), np.array([2.0, 3.0, 5.0])
    found, back = twin.ratio(ours, theirs), twin.ratio(theirs, ours)
    assert found.value * back.value == pytest.approx(1)
    assert found.low * back.high == pytest.approx(1)


def test_words_follow_the_interval():
    words = [twin.judged(Interval(2, low, high), 1.0) for low, high in ((1.5, 3), (0, 0.5), (0, 3))]
    assert words == ["holds", "fails", "not decided"]
