"""Compiled parts are found, and run so that their hooks are called."""

import pytest
import torch
from torch import nn

import layerlab
from layerlab.observe.tracing.compiled import is_compiled, run_uncompiled
from tests.measures.family import built


def stack() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))


@pytest.mark.full
def test_a_compiled_part_is_found_in_place_and_wrapped():
    inner, wrapped, forward = stack(), stack(), stack()
    inner[1].compile(backend="eager")
    wrapped[0] = torch.compile(wrapped[0], backend="eager")
    forward.forward = torch.compile(forward.forward, backend="eager")
    assert not is_compiled(stack())
    assert all(map(is_compiled, (inner, wrapped, forward)))


@pytest.mark.full
def test_hooks_inside_compiled_code_are_called():
    model, heard = stack(), []
    called = torch.compile(model, backend="eager")
    called(torch.zeros(1, 2))
    model[1].register_forward_hook(lambda *call: heard.append(torch.compiler.is_compiling()))
    with run_uncompiled(called):
        called(torch.zeros(1, 2))
    assert heard == [False]


@pytest.mark.full
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("forward", [True, False])
def test_a_compiled_model_reads_as_it_does_uncompiled(whole, forward):
    model = built("llama").eval()
    ids = torch.arange(3, 23)

    def norms() -> list[float]:
        found = layerlab.inspect(model, input_ids=ids, measures=["stream"], progress=False)
        return found.frame("stream")["norm"].tolist()

    before = norms()
    for part in [model] if whole else model.model.layers:
        if forward:
            part.forward = torch.compile(part.forward, backend="eager")
        else:
            part.compile(backend="eager")
    assert norms() == before
