"""Random states: what was drawn after taking them is drawn again after putting them back."""

import random

import numpy as np
import pytest
import torch

from layerlab.system.rng import device_state, keep_device_state, random_state, restore_random


def draw() -> tuple[float, ...]:
    return (
        float(torch.rand(())),
        float(torch.randn(())),
        float(np.random.standard_normal()),
        random.random(),
        random.gauss(0, 1),
    )


def test_every_generator_goes_on_where_it_was():
    draw()  # gauss and standard_normal keep a second number for the next call
    before = random_state()
    first = [draw() for _ in range(3)]
    assert [draw() for _ in range(3)] != first
    restore_random(before)
    assert [draw() for _ in range(3)] == first


def test_states_survive_a_file_that_holds_no_code(tmp_path):
    before = random_state()
    torch.save(before, tmp_path / "random.pt")
    first = draw()
    restore_random(torch.load(tmp_path / "random.pt", weights_only=True))
    assert draw() == first


def test_torch_alone_leaves_the_others_going():
    before = device_state()
    first = draw()
    restore_random(before)
    second = draw()
    assert second[:2] == first[:2] and not set(second[2:]) & set(first[2:])


def test_a_device_that_is_not_here_is_left_out():
    restore_random({**random_state(), "npu": [torch.zeros(16, dtype=torch.uint8)]})


def test_random_numbers_go_on_where_they_were():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    with pytest.raises(KeyError), keep_device_state():
        torch.rand(9)
        raise KeyError
    assert torch.equal(torch.rand(2), expected)
