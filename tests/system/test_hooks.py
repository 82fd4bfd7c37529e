"""Hooks that end with a block of code."""

from typing import Any

import pytest
import torch

import layerlab
from layerlab.numerics.emulation.policies.apply import cast
from layerlab.numerics.profiles.classify import OperationIndex
from layerlab.system.hooks import temporary_hooks


def test_hooks_are_there_inside_and_gone_behind_it_even_after_an_error():
    seen = []
    module = torch.nn.Linear(2, 2)
    hooks = [module.register_forward_hook(lambda *call: seen.append(call)) for _ in range(2)]
    with pytest.raises(ZeroDivisionError), temporary_hooks(hooks):
        module(torch.ones(2))
        raise ZeroDivisionError
    assert len(seen) == 2
    module(torch.ones(2))
    assert len(seen) == 2


def interrupt(*given: Any, **named: Any) -> Any:
    raise KeyboardInterrupt


@pytest.fixture
def interrupted() -> Any:
    """A model, Ctrl-C while whose last hook is set."""
    model = layerlab.build("llama", width=16, layers=2, heads=2, vocab=32, context=8)
    vars(model.lm_head)["register_forward_pre_hook"] = interrupt
    return model


def hooks(model: torch.nn.Module) -> list[Any]:
    every = [(one._forward_hooks, one._forward_pre_hooks) for one in model.modules()]
    return [hook for pair in every for table in pair for hook in table.values()]


@pytest.mark.parametrize("run", ["precision", "gap"])
def test_ctrl_c_while_hooks_are_set_leaves_none_of_them(run, interrupted):
    with pytest.raises(KeyboardInterrupt):
        getattr(layerlab, run)(interrupted, input_ids=[range(8)], progress=False)
    assert not hooks(interrupted)


def test_ctrl_c_while_a_policy_is_emulated_leaves_the_model_as_it_was(interrupted):
    policy = layerlab.Policy(format="bf16", keep=("residual",))
    with pytest.raises(KeyboardInterrupt), cast(interrupted, policy, torch.bfloat16):
        pass
    assert not hooks(interrupted)


def test_ctrl_c_while_operations_are_told_apart_leaves_no_hook(interrupted):
    with pytest.raises(KeyboardInterrupt), OperationIndex(interrupted).following(interrupted):
        pass
    assert not hooks(interrupted)
