"""What a module holds comes back as it was."""

import pytest
import torch
from torch import nn

from layerlab.numerics.emulation.emulate import emulate, reference
from layerlab.numerics.emulation.snapshot import Snapshot


class Habit(nn.Module):
    """A module whose code changes itself."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("table", torch.zeros(2))
        self.length = 1


def test_everything_comes_back():
    model = nn.Sequential(Habit(), nn.Linear(2, 2))
    habit = model[0]
    weight, table = habit.weight, habit.table
    kept = Snapshot(model)
    habit._parameters["weight"] = torch.zeros(2)
    habit.table = torch.ones(2)
    habit.register_buffer("late", torch.ones(1))
    habit.length, habit.memory = 5, torch.ones(3)
    kept.restore()
    assert habit.weight is weight
    assert habit.table is table
    assert habit.length == 1
    assert not hasattr(habit, "memory")
    assert not hasattr(habit, "late")


def test_training_or_evaluation_is_the_user_s_choice():
    model = nn.Sequential(nn.Dropout())
    kept = Snapshot(model)
    model.eval()
    kept.restore()
    assert not model[0].training


@pytest.mark.parametrize("where", [None, "1"])
def test_what_a_norm_counts_in_training_comes_back(where):
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    with emulate(model, "bf16", where=where):
        model(x)
    with reference(model):
        model(x)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    model(x)
    assert model[0].num_batches_tracked == 1
