"""Compiled parts are found, and run so that their hooks are called."""

import torch
from torch import nn

from layerlab.observe.tracing.compiled import is_compiled, run_uncompiled


def stack() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))


def test_a_compiled_part_is_found_in_place_and_wrapped() -> None:
    inner, wrapped = stack(), stack()
    inner[1].compile(backend="eager")
    wrapped[0] = torch.compile(wrapped[0], backend="eager")
    assert [is_compiled(one) for one in (stack(), inner, wrapped)] == [False, True, True]


def test_hooks_inside_compiled_code_are_called() -> None:
    model, heard = stack(), []
    called = torch.compile(model, backend="eager")
    called(torch.zeros(1, 2))
    model[1].register_forward_hook(lambda *call: heard.append(torch.compiler.is_compiling()))
    with run_uncompiled(called):
        called(torch.zeros(1, 2))
    assert heard == [False]
