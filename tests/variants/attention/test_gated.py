"""The gate on attention against Qwen 3-Next's attention, and against no gate."""

import pytest
import torch
from transformers import AutoConfig
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextAttention

from layerlab.blocks.context import Flow
from layerlab.blocks.shape import Site
from layerlab.model.attention import attend
from layerlab.variants.attention.gated import GatedAttention
from layerlab.variants.attention.querykey import NormedAttention
from tests.model.small import shaken, small, tokens
from tests.variants.option import TIGHT, close
from tests.variants.relative import SIZES


class Both(GatedAttention, NormedAttention):
    """Qwen 3-Next's attention has the gate and the norm on queries and keys."""


def published() -> Qwen3NextAttention:
    config = AutoConfig.for_model("qwen3_next", **SIZES, layer_types=["full_attention"] * 3)
    config._attn_implementation = "eager"
    module = Qwen3NextAttention(config, 0).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return module


def with_weights_of(theirs: Qwen3NextAttention) -> Both:
    shape = small("llama", kv_heads=2).config.shape()
    mine = Both(48, Site(shape=shape, layer=0, role="attention", attend=attend)).eval()
    query, gate = theirs.q_proj.weight.view(4, 2, 12, 48).unbind(1)  # [query | gate] per head
    mine.load_state_dict(
        {
            "query.weight": query.reshape(48, 48),
            "gate.weight": gate.reshape(48, 48),
            "key.weight": theirs.k_proj.weight,
            "value.weight": theirs.v_proj.weight,
            "output.weight": theirs.o_proj.weight,
            "query_norm.weight": 1.0 + theirs.q_norm.weight,  # gains are stored less 1 there
            "key_norm.weight": 1.0 + theirs.k_norm.weight,
        }
    )
    return mine


def test_with_the_weights_of_qwen_3_next_it_is_its_attention():
    theirs = published()
    mine = with_weights_of(theirs)
    x = torch.randn(2, 9, 48, generator=torch.Generator().manual_seed(1))
    angles = torch.outer(torch.arange(9.0), 10000.0 ** (-torch.arange(6.0) / 6)).repeat(1, 2)
    rotary = (angles.cos().expand(2, -1, -1), angles.sin().expand(2, -1, -1))
    mask = torch.full((9, 9), -torch.inf).triu(1).expand(2, 1, -1, -1)
    expected, _ = theirs(x, rotary, mask)
    found, _ = mine(x, Flow(mask=mask, rotary=rotary, implementation="eager"))
    # Two matrices there are one here: products of 48 terms may be summed in another order.
    atol = 48 * torch.finfo(torch.float32).eps * expected.abs().max().item()
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("gate", ["element", "head"])
def test_an_open_gate_is_no_gate_and_a_closed_one_says_nothing(gate):
    gated, plain = small("gated-attention", gate=gate, **{"attention.bias": "qkv"}), small("llama")
    shaken(plain)
    for layer, other in zip(gated.model.layers, plain.model.layers, strict=True):
        with torch.no_grad():
            for name, parameter in layer.named_parameters():
                found = dict(other.named_parameters()).get(name)
                parameter.zero_() if found is None else parameter.copy_(found)
            layer.attention.gate.bias.fill_(80.0)  # 1 - sigmoid is 2e-35: 1 in float64
    for name in ("embed_tokens", "norm"):
        getattr(gated.model, name).load_state_dict(getattr(plain.model, name).state_dict())
    gated.lm_head.load_state_dict(plain.lm_head.state_dict())
    close(gated(tokens()).logits, plain(tokens()).logits)
    attention = gated.model.layers[0].attention
    with torch.no_grad():
        attention.gate.bias.fill_(-80.0)
    seen = []
    attention.register_forward_hook(lambda _, __, out: seen.append(out[0]))
    gated(tokens())
    assert seen[0].abs().max() < TIGHT


def test_one_gate_per_head_is_one_gate_per_feature_with_equal_rows():
    head, element = shaken(small("gated-attention", gate="head")), small("gated-attention")
    state = head.state_dict()
    for key in state:
        if key.endswith("attention.gate.weight"):
            state[key] = state[key].repeat_interleave(12, dim=0)
    element.load_state_dict(state)
    close(head(tokens()).logits, element(tokens()).logits)
