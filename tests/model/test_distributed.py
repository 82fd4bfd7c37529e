"""Sharded over two processes, a step of training is the step of one process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from layerlab.model.modeling import LabForCausalLM
from tests.model.small import shaken, small, tokens

# A plain variant, one with a carry across depth, one whose stream is several.
SHARDED = ("llama", "history-3", "hyper-connections")
RATE = 0.1

PROGRAM = """
import sys
from datetime import timedelta
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from tests.model.test_distributed import SHARDED, made, stepped
from tests.model.small import tokens

folder, rank = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
distributed.init_process_group(
    "gloo",
    init_method=f"file://{folder}/store",
    rank=rank,
    world_size=2,
    timeout=timedelta(seconds=60),
)
mesh = init_device_mesh("cpu", (2,))
for name in SHARDED:
    model = made(name)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    split = [one for one in model.parameters() if one.to_local().numel() < one.numel()]
    assert split, "nothing was sharded"
    loss = stepped(model, tokens()[rank : rank + 1])
    distributed.all_reduce(loss)
    whole = {key: one.full_tensor() for key, one in model.state_dict().items()}
    if rank == 0:
        torch.save({"loss": loss / 2, **whole}, f"{folder}/{name}.pt")
distributed.destroy_process_group()
"""


def made(name: str) -> LabForCausalLM:
    return shaken(small(name)).train()


def stepped(model: LabForCausalLM, x: torch.Tensor) -> torch.Tensor:
    """One step of plain gradient descent; gives the loss before it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    loss = model(x, labels=x, use_cache=False).loss
    loss.backward()
    optimizer.step()
    return loss.detach()


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes made of every model, each seeing one of two sequences."""
    folder = tmp_path_factory.mktemp("sharded")
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    settings = {**os.environ, "JAXTYPING_DISABLE": "1"}
    running = [
        subprocess.Popen([*command, str(rank)], env=settings, stderr=subprocess.PIPE, text=True)
        for rank in (0, 1)
    ]
    try:
        for one in running:
            _, errors = one.communicate(timeout=240)
            assert one.returncode == 0, errors[-2000:]
    finally:
        for one in running:
            one.kill()
    return folder


@pytest.mark.parametrize("name", SHARDED)
def test_two_processes_step_like_one(name: str, sharded: Path) -> None:
    model = made(name)
    before = {key: one.clone() for key, one in model.state_dict().items()}
    loss = stepped(model, tokens())
    theirs = torch.load(sharded / f"{name}.pt", weights_only=True)
    # Sums in another order in float64; the loss itself is formed in float32.
    torch.testing.assert_close(theirs.pop("loss"), loss, rtol=4 * 2.0**-23, atol=0)
    assert theirs.keys() == before.keys()
    for key, one in model.state_dict().items():
        moved = float((one - before[key]).abs().max())
        gap = float((theirs[key] - one).abs().max())
        assert gap <= 64 * 2.0**-23 * max(moved, 1e-6), key
        assert moved > 0, key
