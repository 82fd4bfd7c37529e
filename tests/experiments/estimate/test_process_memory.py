"""What a plan says that one of many processes holds, against what FSDP2 tells of itself."""

import json
from typing import Any

import pytest

from layerlab.experiments.estimate.process_memory import process_memory
from layerlab.recipes.training import make_recipe
from tests.support.forked import python

# One of many processes, of which the others are not there: collectives give what they may.
PROGRAM = """
import json, sys
import torch
import torch.distributed as dist
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.testing._internal.distributed.fake_pg import FakeStore
from layerlab.experiments.estimate.process_memory import process_memory
from layerlab.experiments.estimate.step_time import measure_step_time
from layerlab.model.loss import causal_loss
from layerlab.recipes.training import make_recipe
from layerlab.training.optimizer import build_optimizer
from layerlab.training.run_spec import RunSpec
from layerlab.training.setup import build_model
from layerlab.training.sharding import wrap_model

recipe = make_recipe(json.loads(sys.argv[1]))
run = RunSpec(arm="one", recipe=recipe, digest="")
activations = measure_step_time(run, 10**9, 1e18).activations
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=recipe.run.num_processes)
model = wrap_model(build_model(run, torch.device("cpu")), None, recipe.run)
optimizer = build_optimizer(model, recipe.train)
tokens = torch.zeros(1, recipe.data.block_size, dtype=torch.long)
tracker = FSDPMemTracker(model, optimizer)
tracker.track_inputs((tokens,))
with tracker:
    for update in range(2):
        logits = model(input_ids=tokens, use_cache=False).logits
        causal_loss(logits, tokens, logits.shape[-1]).backward()
        optimizer.step()
        optimizer.zero_grad()
        if update == 0:
            tracker.reset_mod_stats()
held = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
print(json.dumps([process_memory(recipe, activations), held]))
"""


def asked(variant: str, processes: int, vocab: int, block: int, **run: Any) -> dict[str, Any]:
    return {
        "model": {
            "variant": variant,
            "width": 256,
            "layers": 6,
            "heads": 4,
            "vocab": vocab,
            "context": block,
        },
        "data": {"block_size": block},
        "train": {"max_steps": 2, "batch_size": processes},
        "run": {"num_processes": processes, "sharding": "fsdp", **run},
    }


# Activations weigh most, or logits and the head, or weights, or gradients of both ends.
# In the last two all layers share their weights, which are whole at once.
@pytest.mark.full
@pytest.mark.parametrize(
    ("variant", "processes", "vocab", "block", "options"),
    [
        ("llama", 2, 512, 256, {}),
        ("llama", 32, 8192, 128, {}),
        ("llama", 32, 512, 32, {}),
        ("gpt2", 2, 8192, 128, {}),
        ("gpt2", 32, 512, 32, {}),
        ("pangu-pi", 32, 512, 256, {}),
        ("llama", 32, 32768, 16, {}),
        ("gpt2", 32, 8192, 16, {}),
        ("llama", 2, 512, 128, {"sharing": "blocks"}),
        ("llama", 2, 8192, 8, {"sharing": "blocks", "head": "tied"}),
    ],
)
def test_one_of_many_holds_what_fsdp_says(variant, vocab, block, processes, options):
    content = asked(variant, processes, vocab, block)
    content["model"]["options"] = options
    told, held = json.loads(python("-c", PROGRAM, json.dumps(content)).stdout)
    assert told == pytest.approx(held, rel=0.1)


def test_shares_and_copies_differ_by_what_each_must_have():
    def memory(processes: int, sharding: str) -> int:
        recipe = make_recipe(asked("llama", processes, 512, 32, sharding=sharding))
        return process_memory(recipe, 10**6)

    one, copied = memory(1, "none"), memory(2, "none")
    # Four bytes of each weight, gradient and moment; DDP exchanges gradients in buckets.
    assert copied - one == (one - 10**6) // 4
    few, many = memory(2, "fsdp"), memory(64, "fsdp")
    assert many < few < one
    # What each works on is left.
    assert memory(2**12, "fsdp") == pytest.approx(many, rel=0.1)
