"""A device that a recipe names by its number is the one that is trained on."""

import pytest
import torch

from layerlab.training.accelerator import select_device
from tests.support.refused import refuses


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The devices that were made the current one, as on a machine with two GPUs."""
    found: list[int] = []
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.accelerator, "set_device_index", found.append)
    return found


def test_a_number_makes_the_device_the_current_one(chosen):
    for name in ("cuda:1", "cuda:0", "cuda", "cpu", "npu:1"):
        select_device(name)
    assert chosen == [1, 0]


def test_a_number_beyond_the_devices_that_there_are_is_refused(chosen):
    said = "run.device is 'cuda:2', and PyTorch sees 2 of cuda here, from cuda:0 on; write device ="
    refuses(said, select_device, "cuda:2")
    assert not chosen


@pytest.mark.gpu
def test_a_run_is_on_the_device_of_its_number():
    from layerlab.recipes.training import make_recipe
    from layerlab.training.accelerator import RunAccelerator

    last = torch.cuda.device_count() - 1
    before = torch.cuda.current_device()
    recipe = make_recipe({"train": {"max_steps": 2}, "run": {"device": f"cuda:{last}"}})
    try:
        assert RunAccelerator(recipe).device == torch.device("cuda", last)
        assert torch.cuda.current_device() == last
    finally:
        torch.cuda.set_device(before)
