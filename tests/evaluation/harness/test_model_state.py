"""A model of the user's own class is another one once what its file imports has changed."""

import functools
import importlib
import sys
import types
from collections.abc import Callable
from typing import Any

import accelerate
import numpy as np
import pytest
import torch
from torch import nn
from transformers import AttentionInterface

from layerlab.evaluation.harness.model_state import describe_state

OWN = """
from torch import nn
from beside_own_model import SCALE


class Own(nn.Linear):
    def forward(self, x):
        return SCALE * super().forward(x)
"""


def test_a_module_beside_the_class_counts(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_model.py").write_text(OWN)
    helper = tmp_path / "beside_own_model.py"
    helper.write_text("SCALE = 1\n")
    model = importlib.import_module("own_model").Own(2, 2)
    before = describe_state(model)
    assert describe_state(model) == before
    helper.write_text("SCALE = 2\n")
    assert describe_state(model) != before
    for name in ("own_model", "beside_own_model"):
        del sys.modules[name]


# What a module may hold beside weights and buffers, as a function of a number that it computes by.
HELD: dict[str, Callable[[float], Any]] = {
    "number": lambda scale: scale,
    "tensor": lambda scale: torch.tensor(scale),
    "tensor in a list": lambda scale: [torch.tensor(scale)],
    "array": lambda scale: np.array([scale]),
    "settings": lambda scale: types.SimpleNamespace(scale=scale),
    "settings in a dict": lambda scale: {"a": types.SimpleNamespace(scale=scale), "b": None},
    "partial": lambda scale: functools.partial(nn.functional.elu, alpha=scale),
    "method": lambda scale: nn.Threshold(scale, 0.0).forward,
    "format": lambda scale: torch.float32 if scale == 1 else torch.float64,
    "set": lambda scale: {scale, 7.0},
    "bytes": lambda scale: str(scale).encode(),
    "module that is no part": lambda scale: (nn.Threshold(scale, 0.0),),
    "empty or not": lambda scale: [] if scale == 1 else [{}],
}


def _holding(held: Any) -> nn.Module:
    model = nn.Sequential(nn.Identity())
    model[0].held = held
    return model


@pytest.mark.parametrize("kind", HELD)
def test_what_a_module_holds_counts(kind):
    one, again, other = (describe_state(_holding(HELD[kind](scale))) for scale in (1.0, 1.0, 2.0))
    assert one == again != other


class Slotted:
    __slots__ = ("__dict__", "scale")


CANNOT_BE_TOLD = (
    *(lambda x: x, iter([1]), functools.partial(lambda x: x), object().__str__, [len]),
    Slotted(),
)


@pytest.mark.parametrize("held", CANNOT_BE_TOLD)
def test_what_cannot_be_told_is_never_the_same(held):
    model = _holding(held)
    assert describe_state(model) != describe_state(model)


@pytest.mark.parametrize("held", [torch.tanh, nn.functional.gelu, nn.functional.elu, nn.ReLU])
def test_functions_of_torch_are_told(held):
    model = _holding(held)
    assert describe_state(model) == describe_state(model)


def test_values_that_hold_each_other_come_to_an_end():
    model = _holding([(1,), (1,)])
    model[0].held += [model, model[0].held]
    assert describe_state(model) == describe_state(model)


def test_only_what_accelerate_itself_hangs_in_is_known():
    class Doubling(accelerate.hooks.ModelHook):
        def post_forward(self, module: nn.Module, output: Any) -> Any:
            return 2 * output

    moved = accelerate.cpu_offload(nn.Sequential(nn.Linear(2, 2)), torch.device("cpu"))
    assert describe_state(moved) == describe_state(moved)
    accelerate.hooks.add_hook_to_module(moved[0], Doubling(), append=True)
    assert describe_state(moved) != describe_state(moved)


def test_attention_of_the_users_own_is_never_known(tiny):
    """Its name says nothing of what it computes."""
    model = tiny("llama")
    assert describe_state(model) == describe_state(model)
    AttentionInterface.register("own", lambda *_, **__: None)
    try:
        model.config._attn_implementation = "own"
        assert describe_state(model) != describe_state(model)
    finally:
        AttentionInterface._global_mapping.pop("own")
