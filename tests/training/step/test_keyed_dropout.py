"""Keyed dropout: the same masks whatever the variant, the micro-batch and the history."""

import json

import pytest
import torch
from torch import Tensor

from layerlab import UserError, build
from layerlab.model.modeling import LabForCausalLM
from layerlab.training.step.keyed_dropout import key_dropout
from tests.support.forked import python
from tests.training.support.controlled import words

SIZES = {"width": 16, "layers": 2, "heads": 2, "vocab": 64, "context": 16}


def model(variant: str = "llama", **options: object) -> LabForCausalLM:
    return build(variant, **{**SIZES, "dropout": 0.2, **options}).train()


def gradients(one: LabForCausalLM, pieces: int = 1, update: int = 5) -> Tensor:
    one.zero_grad()
    ids = words()
    for first in range(0, len(ids), len(ids) // pieces):
        piece = ids[first : first + len(ids) // pieces]
        with key_dropout(one, 1, update, first):
            (one(piece, labels=piece).loss / pieces).backward()
    return torch.cat([parameter.grad.flatten() for parameter in one.parameters()])


def masks(one: LabForCausalLM) -> dict[str, Tensor]:
    """What every site makes of ones."""
    found = {}
    with key_dropout(one, 1, 5, 0):
        for module in one.modules():
            if hasattr(module, "site"):
                found[module.site] = module(torch.ones(2, 3, 4))
    return found


def test_the_same_key_is_the_same_run_whatever_was_drawn_before():
    one = model()
    first = gradients(one)
    torch.rand(7)
    assert torch.equal(gradients(one), first)
    assert not torch.equal(gradients(one, update=6), first)


def test_micro_batches_drop_what_the_whole_batch_drops():
    one = model()
    whole, split = gradients(one), gradients(one, pieces=4)
    assert float((whole - split).norm() / whole.norm()) < 1e-5
    torch.manual_seed(0)  # the law could fail: unkeyed, the split decides
    one.zero_grad()
    one(words(), labels=words()).loss.backward()
    plain = torch.cat([parameter.grad.flatten() for parameter in one.parameters()])
    assert float((whole - plain).norm() / whole.norm()) > 1e-2


def test_variants_that_share_a_site_share_its_mask():
    one, two = masks(model()), masks(model("qk-norm"))
    assert set(one) == set(two) and len(one) == 7
    assert all(torch.equal(one[site], two[site]) for site in one)
    assert not torch.equal(one["layers.0.ffn"], one["layers.1.ffn"])


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_layer_that_is_run_again_drops_the_same(reentrant):
    one = model()
    plain = gradients(one)
    one.activation_checkpointing_enable({"use_reentrant": reentrant})
    assert float((gradients(one) - plain).abs().max()) < 1e-6 * float(plain.abs().max())


def test_afterwards_all_is_as_it_was():
    one = model()
    state = set(one.state_dict())
    with pytest.raises(ValueError), key_dropout(one, 0, 0, 0):
        raise ValueError
    assert one.config._attn_implementation == "sdpa"
    assert set(one.state_dict()) == state
    torch.manual_seed(2)
    first = one(words()).logits
    torch.manual_seed(2)
    assert torch.equal(one(words()).logits, first)
    assert not torch.equal(one(words()).logits, first)


def test_a_model_without_dropout_keeps_its_attention():
    one = build("llama", **SIZES)
    with key_dropout(one, 0, 0, 0):
        assert one.config._attn_implementation == "sdpa"


def test_attention_weights_are_dropped_by_key():
    one = model()
    for module in one.modules():
        if hasattr(module, "site") and not module.site.endswith("weights"):
            module.rate = 0.0
    one.set_attn_implementation("sdpa")
    first, plain = gradients(one), gradients(one.eval())
    assert not torch.equal(first, plain)
    assert torch.equal(gradients(one.train()), first)


def test_a_kernel_that_takes_no_mask_is_refused():
    one = model()
    one.config._attn_implementation = "flex_attention"
    with pytest.raises(UserError) as told, key_dropout(one, 0, 0, 0):
        pass
    assert str(told.value) == (
        'train.attn_implementation is "flex_attention", which takes no masks of dropout from '
        'outside; write attn_implementation = "sdpa", or dropout = 0'
    )


PROGRAM = """
import json, torch
from tests.training.step.test_keyed_dropout import gradients, model
torch.set_num_threads(1)
one = model(layers=1)
plain = [gradients(one, update=update) for update in (1, 2)]
for layer in one.model.layers:
    layer.compile(fullgraph=True, backend="aot_eager")
before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
given = [gradients(one, update=1)]
graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
given.append(gradients(one, update=2))
again = torch._dynamo.utils.counters["stats"]["unique_graphs"]
gaps = [float((a - b).abs().max() / b.abs().max()) for a, b in zip(given, plain)]
print(json.dumps([gaps, graphs, again]))
"""


@pytest.mark.full
def test_compiled_layers_drop_the_same_and_are_compiled_once():
    given = python("-c", PROGRAM)
    assert given.returncode == 0, given.stderr[-2000:]
    gaps, graphs, again = json.loads(given.stdout.splitlines()[-1])
    assert max(gaps) < 1e-5
    assert graphs == again
