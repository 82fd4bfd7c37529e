"""Without a GPU: no measure joins tensors of a model's device with those of the processor."""

import subprocess
import sys

import pytest

FAMILIES = [
    *("gpt2", "llama", "mixtral", "gemma2", "qwen3_next", "bloom", "falcon", "phi", "opt", "olmo2"),
    *("gpt_neox", "cohere"),
]


def reported(*families):
    command = [sys.executable, "-m", "tests.measures.on_pretend_device", *families]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.full
@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_is_read_where_it_lies(family):
    assert reported(family) == [f"{family}: read"]


@pytest.mark.full
def test_tensors_of_two_devices_are_refused():
    script = """
import torch
from tests.support.pretend_device import NAME, pretending
with pretending():
    there = torch.arange(6.0, device=NAME)
    assert (there.device.type, (there * 2).sum().item()) == (NAME, 30)
    assert there[torch.tensor([1, 2])].cpu().tolist() == [1, 2]
    there.index_select(0, torch.tensor([1, 2]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "aten.index_select.default of pretend:0 was given a (2,) of cpu" in done.stderr
