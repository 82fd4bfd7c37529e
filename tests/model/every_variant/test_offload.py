"""Weights that accelerate keeps elsewhere are there when they are needed."""

import json

import pytest
import torch
from accelerate import cpu_offload
from accelerate.utils import send_to_device

from layerlab.blocks.context import Flow
from layerlab.blocks.operations import chunking
from tests.model.exempt import bound
from tests.model.small import TIGHT, shaken, small, tokens
from tests.support.forked import python

# The stack's own part and the last layers lie on different devices.
APART = """
import json, sys
import torch
from accelerate import dispatch_model
from tests.model.small import shaken, small, tokens
from tests.support.pretend_device import NAME, pretending

far = {}
for name in json.loads(sys.argv[1]):
    model, x = shaken(small(name)).requires_grad_(False), tokens()
    wanted = model(x).logits
    places = {f"model.{key}": "cpu" for key, _ in model.model.named_children() if key != "layers"}
    places |= {"model.layers.0": "cpu", "model.layers.1": NAME, "model.layers.2": NAME}
    places |= {"model.norm": NAME, "lm_head": NAME}
    skipped = model._skip_keys_device_placement
    with pretending():
        dispatch_model(model, places, main_device="cpu", force_hooks=True, skip_keys=skipped)
        far[name] = float((model(x).logits.cpu() - wanted).abs().max())
print(json.dumps(far))
"""


@pytest.mark.parametrize("name", bound("offload"))
def test_offloaded_weights_give_the_same_logits(name, monkeypatch):
    model, x = shaken(small(name)).requires_grad_(False), tokens()
    wanted = model(x, use_cache=False).logits
    cpu_offload(model, torch.device("cpu"))
    assert all(one.is_meta for one in model.parameters())
    for size in (chunking.LARGE, 1):  # and as a large batch, by rows that stay in the cache
        monkeypatch.setattr(chunking, "LARGE", size)
        found = model(x, use_cache=False).logits
        torch.testing.assert_close(found, wanted, rtol=0, atol=TIGHT)


def test_what_is_carried_moves_to_where_a_part_is():
    flow = Flow(carry={"residual.streams": torch.zeros(2)})
    _, moved = send_to_device((torch.zeros(2), flow), "meta")
    assert moved is flow and flow.carry["residual.streams"].is_meta


@pytest.mark.full
def test_layers_on_several_devices_give_the_same_logits():
    names = ["denseformer", "attention-residuals"]
    done = python("-c", APART, json.dumps(names))
    assert done.returncode == 0, done.stderr
    far = json.loads(done.stdout.splitlines()[-1])
    assert far.keys() == set(names) and max(far.values()) < TIGHT
