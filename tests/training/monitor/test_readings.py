"""Readings of gradients in any dtype, and of heads that are not finite."""

import gc
import weakref
from math import isnan, nan

import pytest
import torch

from layerlab import Monitor
from tests.training.support.watched import batch, loss_of, ours, read_once, values


def test_gradients_in_float64_are_told_beside_others():
    model = ours().double()
    model.lm_head.to(torch.float32)
    model.lm_head.register_forward_pre_hook(lambda module, args: (args[0].float(),))
    monitor = Monitor(model)
    loss_of(model, batch(9)).backward()
    squares = sum(float(one.grad.double().square().sum()) for one in model.parameters())
    monitor.step()
    assert not monitor.notes
    assert values(monitor, "gradient")[None, None] == pytest.approx(squares**0.5, rel=1e-6)


@pytest.mark.parametrize("size", [1e-30, 1e-40, 1e25])
def test_gradients_whose_squares_float32_does_not_hold_are_told(size):
    model = ours()
    monitor = Monitor(model, on_alarm=None)
    loss_of(model, batch(9)).backward()
    for one in model.parameters():
        one.grad.fill_(size)
    model.lm_head.weight.grad.zero_()
    count = sum(one.numel() for one in model.parameters()) - model.lm_head.weight.numel()
    monitor.step()
    exact = torch.tensor(size).item() * count**0.5
    assert values(monitor, "gradient")[None, None] == pytest.approx(exact, rel=1e-6, abs=0.0)


def test_no_gradient_waits_for_the_garbage_collector():
    model = ours()
    monitor = Monitor(model)
    loss_of(model, batch(9)).backward()
    held = [weakref.ref(one.grad) for one in model.parameters()]
    gc.collect()
    gc.disable()
    try:
        monitor.step()
        model.zero_grad()
        assert not any(one() is not None for one in held)
    finally:
        gc.enable()


@pytest.mark.parametrize("head", [0, 1])
def test_the_newest_reading_tells_of_one_head_that_is_not_finite(head):
    model = ours()
    with torch.no_grad():
        model.model.layers[1].attention.query.weight.view(2, -1)[head, 0] = nan
    monitor = read_once(model, batch(9), Monitor(model, on_alarm=None))
    assert isnan(monitor.latest["score"])
    assert isnan(monitor.latest["entropy"])
    assert isnan(monitor.latest["querykey_norm"])
