"""What decays and what does not, in every variant."""

import copy

import pytest
import torch
from torch import nn

from layerlab import build, list_variants
from layerlab.recipes.training_sections import TrainSection
from layerlab.training.optimizer import allocate, build_optimizer

TRAIN = TrainSection(max_steps=1, weight_decay=0.25)


def split(model):
    names = {id(one): name for name, one in model.named_parameters()}
    groups = build_optimizer(model, TRAIN).param_groups
    return {group["weight_decay"]: {names[id(one)] for one in group["params"]} for group in groups}


@pytest.mark.parametrize("name", list(list_variants()))
def test_every_parameter_is_in_one_group_and_vectors_do_not_decay(name):
    model = build(name, width=16, layers=2, heads=2, vocab=32, context=8, device="meta")
    found = split(model)
    assert found[0.25] | found[0.0] == {name for name, _ in model.named_parameters()}
    assert not found[0.25] & found[0.0]
    for one, parameter in model.named_parameters():
        assert one in found[0.0] or parameter.dim() >= 2


def test_scales_and_shifts_of_a_series_do_not_decay_and_its_matrices_do():
    found = split(build("pangu-pi", width=16, layers=1, heads=2, vocab=32, context=8))
    series = {name for name in found[0.0] if ".ffn." in name}
    assert series and all("weight" in name for name in found[0.25])
    assert any("shortcut" in name for name in found[0.25])


def test_it_is_adamw():
    model = nn.Linear(3, 3)
    twin = nn.Linear(3, 3)
    twin.load_state_dict(model.state_dict())
    train = TRAIN.model_copy(update={"weight_decay": 0.0, "learning_rate": 0.1})
    pair = [
        build_optimizer(model, train),
        torch.optim.AdamW(twin.parameters(), lr=0.1, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    x = torch.randn(4, 3)
    for one, optimizer in zip((model, twin), pair, strict=True):
        one(x).square().sum().backward()
        optimizer.step()
    torch.testing.assert_close(model.weight, twin.weight, rtol=1e-5, atol=1e-6)


def test_moments_made_beforehand_are_those_of_the_first_step():
    """To the bit, with their names in order: a checkpoint is the same."""
    model = build("pangu-pi", width=16, layers=1, heads=2, vocab=32, context=8)
    states = []
    for early in (True, False):
        twin = copy.deepcopy(model)
        optimizer = build_optimizer(twin, TRAIN)
        if early:
            allocate(optimizer)
            assert all(len(optimizer.state[one]) == 3 for one in twin.parameters())
        for seed in (0, 1):
            tokens = torch.randint(32, (2, 8), generator=torch.Generator().manual_seed(seed))
            twin(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
        states.append(optimizer.state_dict()["state"])
    early, late = ({key: list(one.items()) for key, one in state.items()} for state in states)
    assert early.keys() == late.keys() and len(early) > 0
    for key in early:
        for (name, mine), (other, theirs) in zip(early[key], late[key], strict=True):
            assert name == other and mine.dtype == theirs.dtype and mine.device == theirs.device
            assert mine.stride() == theirs.stride() and torch.equal(mine, theirs)


def test_moments_that_are_there_stay():
    model = nn.Linear(3, 3)
    optimizer = build_optimizer(model, TRAIN)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    before = optimizer.state[model.weight]["exp_avg"]
    allocate(optimizer)
    assert optimizer.state[model.weight]["exp_avg"] is before
