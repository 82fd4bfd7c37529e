"""The course of the learning rate against that of transformers, and its corners."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import get_scheduler

from layerlab.recipes.training_sections import TrainSection, warmup_of
from layerlab.training.lr_schedule import lr_at

UPDATES = 40


def rates(**settings):
    train = TrainSection(max_steps=UPDATES, learning_rate=2.0, **settings)
    return [lr_at(update, UPDATES, train) for update in range(UPDATES)]


@pytest.mark.parametrize("name", ["cosine", "linear", "constant"])
def test_it_is_that_of_transformers_without_a_warm_up(name):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=2.0)
    theirs = get_scheduler(name, optimizer, num_warmup_steps=0, num_training_steps=UPDATES)
    expected = []
    for _ in range(UPDATES):
        expected.append(theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()
    assert rates(lr_scheduler_type=name, warmup_steps=0.0, min_lr_ratio=0.0) == pytest.approx(
        expected, rel=1e-12
    )


@given(
    st.sampled_from(["cosine", "linear", "constant", "wsd"]),
    st.integers(0, 60),
    st.floats(0, 1),
    st.floats(0.01, 1),
)
def test_it_rises_to_the_rate_and_never_falls_below_its_share(name, warmup, final, cooldown):
    ratios = {"min_lr_ratio": final, "decay_ratio": cooldown}
    found = rates(lr_scheduler_type=name, warmup_steps=float(warmup), **ratios)
    warm = min(warmup, UPDATES)
    assert found[:warm] == sorted(found[:warm])
    assert found[warm:] == sorted(found[warm:], reverse=True)
    assert all(0 < rate <= 2.0 for rate in found[:warm])
    assert all(2.0 * final - 1e-12 <= rate <= 2.0 for rate in found[warm:])


def test_wsd_is_flat_and_then_falls():
    found = rates(lr_scheduler_type="wsd", warmup_steps=0.0, min_lr_ratio=0.0, decay_ratio=0.25)
    assert found[:30] == [2.0] * 30
    assert found[30:] == pytest.approx([2.0 * (10 - step) / 10 for step in range(10)])


def test_a_warm_up_below_one_is_a_share():
    assert warmup_of(200, TrainSection(max_steps=1, warmup_steps=0.05)) == 10
    assert warmup_of(200, TrainSection(max_steps=1, warmup_steps=4000)) == 200


def test_wsd_falls_in_a_share_of_what_the_warm_up_leaves():
    found = rates(lr_scheduler_type="wsd", warmup_steps=20, decay_ratio=0.5, min_lr_ratio=0.0)
    assert sum(rate < 2.0 for rate in found[20:]) == 9 and found[30] == 2.0
