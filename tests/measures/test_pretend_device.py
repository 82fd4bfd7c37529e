"""Without a GPU: no measure joins tensors of a model's device with those of the processor."""

import pytest
import torch

import layerlab
from layerlab.known_names import MEASURES
from tests.measures.family import built
from tests.support.elsewhere import living_elsewhere
from tests.support.forked import empty_python

FAMILIES = [
    *("gpt2", "llama", "mixtral", "gemma2", "qwen3_next", "bloom", "falcon", "phi", "opt", "olmo2"),
    *("gpt_neox", "cohere"),
]


IDS = [[number * 7 % 61 for number in range(48)]]
# What an emulated tensor holds cannot be marked.
EMULATING = {"rounding", "logits", "attribution", "gap"}


def reported(*families):
    done = empty_python("-m", "tests.measures.on_pretend_device", *families, check=True)
    return done.stdout.splitlines()


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_is_read_where_it_lies(family):
    assert reported(family) == [f"{family}: read"]


@pytest.mark.full
def test_a_saved_model_is_read_onto_the_device_as_it_is_stored(tmp_path):
    built("llama", torch.float16).save_pretrained(tmp_path)
    script = f"""
from layerlab.loading.model import load_model
from tests.support.pretend_device import NAME, pretending
with pretending():
    model = load_model({str(tmp_path)!r}, device=NAME).model
    print(*{{f"{{one.device}} {{one.dtype}}" for one in model.parameters()}}, *{{
        str(one.device) for one in model.buffers()}})
"""
    done = empty_python("-c", script)
    assert done.stdout.split() == ["pretend:0", "torch.float16", "pretend:0"], done.stderr


@pytest.mark.full
def test_tensors_of_two_devices_and_products_of_whole_numbers_are_refused():
    script = """
import torch
from tests.support.pretend_device import NAME, pretending
with pretending():
    there = torch.arange(6.0, device=NAME)
    assert (there.device.type, (there * 2).sum().item()) == (NAME, 30)
    assert there[torch.tensor([1, 2])].cpu().tolist() == [1, 2]
    for refused in (
        lambda: torch.arange(6)[there.long()],
        lambda: there.index_put_((torch.tensor([1, 2]),), torch.ones(2)),
        lambda: there[:2, None].long() @ there[None, :2].long(),
    ):
        try:
            refused()
        except RuntimeError:
            continue
        raise AssertionError
    there.index_select(0, torch.tensor([1, 2]))
"""
    done = empty_python("-c", script)
    assert "aten.index_select.default of pretend:0 was given a (2,) of cpu" in done.stderr


@pytest.mark.full
@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("name", sorted(set(MEASURES) - EMULATING))
def test_a_measure_reads_a_model_that_lies_elsewhere(tiny, name, family):
    model = tiny(family)
    asked = {"input_ids": IDS, "measures": name, "progress": False}
    expected = layerlab.inspect(model, **asked).frame(name)
    with living_elsewhere(model):
        found = layerlab.inspect(model, **asked).frame(name)
    assert found.equals(expected)
