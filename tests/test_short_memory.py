"""A GPU that is too small, full or busy is one line, wherever it shows; a CPU stands in for it."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, modeling_utils

import layerlab
from layerlab.console.ending import run_app
from layerlab.errors import UserError
from layerlab.loading.batching import find_batching, reads_ahead
from layerlab.loading.model import load_model
from layerlab.measures.quantities.lipschitz import local_lipschitz
from layerlab.observe.architecture.structure import anatomy
from layerlab.observe.tracing.device_schedule import device_schedule
from layerlab.observe.tracing.trace import trace

SAID = "CUDA out of memory.\nTried to allocate 2.00 GiB."


def full(*_: Any, **__: Any) -> Any:
    raise torch.OutOfMemoryError(SAID)


def short_in(model: Any, backward: bool) -> PreTrainedModel:
    """Return a model whose memory ends in a forward pass, or only in one that keeps a graph."""

    part = model.model.layers[1].mlp
    plain = part.forward

    def run_out(x: Any) -> Any:
        return full() if torch.is_grad_enabled() or not backward else plain(x)

    part.forward = run_out
    found: PreTrainedModel = model
    return found


@pytest.mark.parametrize("backward", [False, True])
def test_an_inspection_names_what_takes_less(tiny, backward):
    model = short_in(tiny("llama"), backward)
    with pytest.raises(UserError) as told:
        layerlab.inspect(model, input_ids=[[1, 2, 3, 4]], measures=["lipschitz"], progress=False)
    said = str(told.value)
    assert said.startswith("out of memory (CUDA out of memory. Tried to allocate 2.00 GiB.); type")
    assert all(word in said for word in ("device='auto'", "context=", "measures="))
    assert "\n" not in said


def test_so_does_a_search_for_a_precision(tiny):
    model = short_in(tiny("llama"), backward=False)
    with pytest.raises(UserError, match=r"^out of memory .*; type device='auto', .*context=$"):
        layerlab.precision(model, input_ids=[[1, 2, 3, 4]], progress=False)


def test_a_model_that_does_not_fit_while_it_is_loaded_ends_the_command_with_2(
    tiny, tmp_path, monkeypatch, capsys
):
    tiny("llama").save_pretrained(tmp_path / "model")
    monkeypatch.setattr(modeling_utils, "caching_allocator_warmup", full)

    def command(**_: Any) -> None:
        layerlab.inspect(tmp_path / "model", input_ids=[[1, 2, 3]], device="cpu", progress=False)

    monkeypatch.setattr("sys.argv", ["layerlab"])
    assert run_app(command) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("layerlab: out of memory (CUDA out of memory. Tried to allocate 2.00")


def test_memory_that_ends_while_weights_are_read_is_no_fault_of_theirs(tiny, tmp_path, monkeypatch):
    tiny("llama").save_pretrained(tmp_path / "model")
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", full)
    with pytest.raises(UserError, match=r"^out of memory"):
        layerlab.inspect(tmp_path / "model", input_ids=[[1, 2, 3]], progress=False)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError(SAID),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable\nand more"),
    ],
)
def test_a_device_that_is_full_or_busy_is_told_from_one_that_is_absent(
    tiny, tmp_path, monkeypatch, error
):
    tiny("llama").save_pretrained(tmp_path / "model")
    plain = torch.zeros

    def refuse(*given: Any, **options: Any) -> Any:
        if given == (1,):
            raise error
        return plain(*given, **options)

    monkeypatch.setattr(torch, "zeros", refuse)
    with pytest.raises(UserError) as told:
        load_model(str(tmp_path / "model"), device="cpu")
    said = str(told.value)
    assert said.startswith("device 'cpu' is full or busy (CUDA ") and "--device auto" in said
    assert "not here" not in said and "\n" not in said


def test_a_measure_that_runs_out_is_not_taken_for_one_that_does_not_apply(tiny):
    with pytest.raises(torch.OutOfMemoryError):
        local_lipschitz(full, torch.ones(3, 4))
    model = short_in(tiny("llama"), backward=True)
    with pytest.raises(torch.OutOfMemoryError):
        trace(model, anatomy(model), [torch.arange(5)], lambda _: None, gradient=True)


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_trial_that_runs_out_says_nothing_of_masks(tiny, side):
    """Else each sequence would be run by itself, and a model be taken for one that is blind."""
    model = short_in(tiny("llama"), backward=False)
    with pytest.raises(torch.OutOfMemoryError):
        find_batching(model, side)
    with pytest.raises(torch.OutOfMemoryError):
        reads_ahead(model)


def test_what_waits_on_a_device_without_memory_of_its_own_is_little():
    own, shared = (device_schedule(torch.device(name)) for name in ("cuda", "mps"))
    assert shared.waiting_bytes + shared.tile_bytes <= 2**30
    assert replace(shared, waiting_bytes=own.waiting_bytes, tile_bytes=own.tile_bytes) == own
