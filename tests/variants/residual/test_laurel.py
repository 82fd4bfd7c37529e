"""LAuReL against Gemma 3n's block, and against its equations written out."""

import pytest
import torch
from transformers.models.gemma3n.configuration_gemma3n import Gemma3nTextConfig
from transformers.models.gemma3n.modeling_gemma3n import Gemma3nTextLaurelBlock

from layerlab.blocks.context import Flow
from layerlab.blocks.operations import chunking
from layerlab.variants.residual.laurel import FORMS
from tests.model.small import shaken, small, tokens
from tests.variants.option import costs_as_counted
from tests.variants.residual.test_hyper import ROUNDING, streams


def test_the_low_rank_form_is_gemmas():
    config = Gemma3nTextConfig(hidden_size=48, laurel_rank=4)
    theirs = Gemma3nTextLaurelBlock(config)
    model = shaken(small("laurel-lr", dtype=torch.float32, normed=True))
    ours = model.model.layers[1].attention_residual
    with torch.no_grad():
        theirs.linear_left.weight.copy_(ours.left.weight)
        theirs.linear_right.weight.copy_(ours.right.weight)
        theirs.post_laurel_norm.weight.copy_(ours.norm.weight)
    x = streams(1, dtype=torch.float32)[:, :, 0]
    # float32: products over 48 and 4 terms, then a norm over 48
    size = (48 + 4 + 48) * 2.0**-24 * x.abs().max().item()
    torch.testing.assert_close(ours.write(x, 0 * x, Flow()), theirs(x), rtol=0, atol=size)


@pytest.mark.parametrize("forms", FORMS)
def test_a_sublayer_is_as_the_equation_says(forms):
    part = shaken(small("laurel", forms=forms, previous=2)).model.layers[1].ffn_residual
    x, y, last, older = streams(4).unbind(2)
    flow = Flow(carry={"residual.before0": last, "residual.before1": older})
    if "pa" not in forms:
        flow.carry.clear()
    found = part.write(x, y, flow)
    seen = x if "lr" in forms else torch.zeros_like(x)
    if "pa" in forms:
        seen = seen + part.earlier[0] * last + part.earlier[1] * older
    kept = x
    if forms != "rw":
        kept = x + torch.einsum("or,ri,bti->bto", part.right.weight, part.left.weight, seen)
    alpha, beta = part.weight if "rw" in forms else (1, 1)
    torch.testing.assert_close(found, alpha * y + beta * kept, rtol=0, atol=ROUNDING)
    if "pa" in forms:
        assert flow.carry["residual.before0"] is x
        assert flow.carry["residual.before1"] is last


@pytest.mark.parametrize("forms", FORMS)
@pytest.mark.parametrize("normed", [False, True])
def test_start_is_the_plain_residual_bit_for_bit(forms, normed):
    x = tokens()
    ours = small("laurel", forms=forms, normed=normed)
    assert torch.equal(ours(x).logits, small("llama")(x).logits)


@pytest.mark.full
def test_softmax_weights_sum_to_one_and_start_at_a_half():
    part = small("laurel-rw", weights="softmax").model.layers[0].ffn_residual
    x, y = streams(2).unbind(2)
    assert torch.equal(part.write(x, y, Flow()), 0.5 * y + 0.5 * x)
    with torch.no_grad():
        part.weight.copy_(torch.tensor([3.0, -2.0]))
    torch.testing.assert_close(part.write(x, x, Flow()), x, rtol=1e-15, atol=1e-15)


def test_the_first_sublayer_has_nothing_to_look_back_to():
    layers = small("laurel-pa", previous=2).model.layers
    assert not list(layers[0].attention_residual.parameters())
    assert layers[0].ffn_residual.earlier.shape == (1,)
    assert layers[1].attention_residual.earlier.shape == (2,)


@pytest.mark.parametrize("forms", FORMS)
@pytest.mark.parametrize("normed", [False, True])
def test_cost_is_as_pytorch_counts_it(forms, normed):
    costs_as_counted(small("laurel", dtype=torch.float32, forms=forms, normed=normed, previous=2))


def test_the_start_is_the_plain_residual_and_who_listens_hears_at_every_size(monkeypatch):
    monkeypatch.setattr(chunking, "LARGE", 1)
    model, x = small("laurel", dtype=torch.float32), tokens()
    assert torch.equal(model(x).logits, small("llama", dtype=torch.float32)(x).logits)
    heard = []
    model.model.layers[0].ffn_residual.right.register_forward_hook(lambda *_: heard.append(1))
    model(x)
    assert heard == [1]
