"""Sharded over two processes, by data or by matrix, training is that of one process."""

from pathlib import Path
from typing import Any

import pytest
import torch

from layerlab.model.modeling import LabForCausalLM
from tests.model.small import TIGHT, shaken, small, tokens
from tests.support.forked import Forked

# A plain variant, one with a carry across depth, one whose stream is several, one whose head is the
# embedding, and one whose layers hold the same matrices: that one is sharded as a whole.
SHARDED = ("llama", "history-3", "hyper-connections", "gpt2", "widenet")
WHOLE = ("widenet",)
RATE = 0.1
# Gated, with biases, with learned numbers between the matrices of both sublayers, with shortcuts.
SPLIT: tuple[tuple[str, dict[str, Any]], ...] = (
    ("llama", {}),
    ("gpt2", {}),
    ("ffn-prelu", {}),
    ("pangu-pi", {}),
    ("value-residual", {"form": "learned"}),
)

PROGRAM = """
import os, sys
from datetime import timedelta
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from layerlab.errors import UserError
from layerlab.model.modeling import LabForCausalLM
from tests.model.every_variant.test_distributed import SHARDED, SPLIT, WHOLE, made, stepped, taught
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
    for layer in model.model.layers if name not in WHOLE else ():
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    split = [one for one in model.parameters() if one.to_local().numel() < one.numel()]
    assert split, "nothing was sharded"
    loss = stepped(model, tokens()[rank : rank + 1])
    distributed.all_reduce(loss)
    whole = {key: one.full_tensor() for key, one in model.state_dict().items()}
    if rank == 0:
        torch.save({"loss": loss / 2, **whole}, f"{folder}/{name}.pt")

os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
for name, options in SPLIT:
    place = f"{folder}/split-{name}"
    model = LabForCausalLM.from_pretrained(place, dtype=torch.float64, tp_plan="auto").train()
    split = [one for one in model.parameters() if isinstance(one, DTensor)]
    assert any(one.to_local().numel() < one.numel() for one in split), "nothing was split"
    learnt = taught(model)
    whole = {k: one.full_tensor() if isinstance(one, DTensor) else one for k, one in learnt.items()}
    torch.save(whole, f"{place}/{rank}.pt")
one = LabForCausalLM.from_pretrained(f"{folder}/one-head", dtype=torch.float64, tp_plan="auto")
try:
    one(tokens())
except UserError as error:
    open(f"{folder}/one-head/{rank}.txt", "w").write(str(error))
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


def taught(model: LabForCausalLM) -> dict[str, torch.Tensor]:
    """Logits, and the gradient of every parameter."""
    x = tokens()
    with torch.no_grad():
        logits = model(x, use_cache=False).logits
    model(x, labels=x, use_cache=False).loss.backward()
    learnt = {key: one.grad for key, one in model.named_parameters()}
    return {"logits": logits, **{key: one for key, one in learnt.items() if one is not None}}


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes made of every model: each saw one of two sequences, or half a matrix."""
    folder = tmp_path_factory.mktemp("sharded")
    for name, options in SPLIT:
        shaken(small(name, **options)).save_pretrained(folder / f"split-{name}")
    small("llama", kv_heads=1).save_pretrained(folder / "one-head")
    running = [Forked("-c", PROGRAM, folder, str(rank)) for rank in (0, 1)]
    for one in running:
        done = one.wait()
        assert done.returncode == 0, done.stderr[-2000:]
    return folder


@pytest.mark.full
@pytest.mark.parametrize("name", SHARDED)
def test_two_processes_step_like_one(name, sharded):
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
        assert moved > 0 or key.endswith("key.bias"), key  # which softmax does not see


@pytest.mark.full
@pytest.mark.parametrize(("name", "options"), SPLIT)
def test_matrices_split_between_two_processes_learn_like_whole_ones(name, options, sharded):
    own = taught(shaken(small(name, **options)).train())
    for rank in (0, 1):
        theirs = torch.load(sharded / f"split-{name}" / f"{rank}.pt", weights_only=True)
        assert theirs.keys() == own.keys() and len(own) > 1
        torch.testing.assert_close(theirs.pop("logits"), own["logits"], rtol=0, atol=TIGHT)
        # Sums in another order in float64; the loss itself is formed in float32, and what a
        # key's bias, which softmax does not see, learns is nothing but rounding.
        largest = max(float(own[key].abs().max()) for key in theirs)
        for key, one in theirs.items():
            gap = float((one - own[key]).abs().max())
            unseen = key.endswith("key.bias")
            size = largest if unseen else float(own[key].abs().max())
            assert gap <= 64 * 2.0**-23 * size, (key, rank)


@pytest.mark.full
def test_more_processes_than_heads_are_told_how_many_there_may_be(sharded):
    for rank in (0, 1):
        said = (sharded / "one-head" / f"{rank}.txt").read_text("utf-8")
        assert "6 features of heads that are 12 wide" in said and "\n" not in said
        assert "divides its heads of keys, 1," in said
