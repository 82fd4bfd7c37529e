"""Normed queries and keys against Qwen 3, OLMo 2's norms and a literal transcription."""

import math

import pytest
import torch
from transformers.models.olmo2.modeling_olmo2 import Olmo2Attention

from layerlab.blocks.context import Flow
from layerlab.model.modeling import LabForCausalLM
from layerlab.observe.architecture.head_weights import project
from layerlab.observe.architecture.structure import anatomy
from layerlab.variants.attention.querykey import first_sharpness
from tests.model.small import shaken, small, tokens
from tests.variants.option import TIGHT
from tests.variants.relative import gives_their_logits, published

QWEN_NORMS = {"input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm"}


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_with_the_weights_of_qwen_3_it_gives_its_logits(implementation):
    gives_their_logits("qwen3", "qk-norm", QWEN_NORMS, implementation)


def test_form_full_is_the_attention_of_olmo_2():
    theirs = published("olmo2").model.layers[0].self_attn
    model = small("qk-norm", form="full", kv_heads=2, dtype=torch.float32)
    mine = model.model.layers[0].attention
    assert isinstance(theirs, Olmo2Attention)
    pairs = {"query": "q_proj", "key": "k_proj", "query_norm": "q_norm", "key_norm": "k_norm"}
    for here, there in pairs.items():
        getattr(mine, here).load_state_dict(getattr(theirs, there).state_dict())
    x = torch.randn(2, 5, 48, generator=torch.Generator().manual_seed(0))
    query, key, _ = mine.heads(x, Flow())
    expected = theirs.q_norm(theirs.q_proj(x)).view(2, 5, 4, 12).transpose(1, 2)
    assert torch.equal(query, expected)
    assert torch.equal(key, theirs.k_norm(theirs.k_proj(x)).view(2, 5, 2, 12).transpose(1, 2))


def l2_attention(model: LabForCausalLM, x: torch.Tensor) -> torch.Tensor:
    """One head after the other: g times the cosine of query and key, softmax, values."""
    part = model.model.layers[0].attention
    query, key, value = (m(x).chunk(4, -1) for m in (part.query, part.key, part.value))
    cos, sin = model.model.rotary_emb(x, torch.arange(x.shape[1]).unsqueeze(0))
    found = []
    for q, k, v in zip(query, key, value, strict=True):
        q, k = q / q.norm(dim=-1, keepdim=True), k / k.norm(dim=-1, keepdim=True)
        turned = [t * cos + torch.cat((-t[..., 6:], t[..., :6]), -1) * sin for t in (q, k)]
        scores = part.sharpness * turned[0] @ turned[1].transpose(1, 2)
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        found.append(scores.masked_fill(later, -torch.inf).softmax(-1) @ v)
    return part.output(torch.cat(found, -1))


def test_form_l2_is_softmax_of_scaled_cosines():
    model = shaken(small("qk-norm", form="l2"))
    seen = []
    layer = model.model.layers[0].attention
    layer.register_forward_hook(lambda _, given, out: seen.append((given[0], out[0])))
    model(tokens())
    x, y = seen[0]
    torch.testing.assert_close(y, l2_attention(model, x), rtol=0, atol=TIGHT)


def test_the_sharpness_of_l2_starts_at_the_value_of_the_source():
    model = small("qk-norm", form="l2", context=97)
    assert model.model.layers[1].attention.sharpness.tolist() == pytest.approx(
        [math.log2(97**2 - 97)], rel=1e-6
    )
    assert model.model.layers[1].attention.scaling == 1.0
    assert first_sharpness(1) == first_sharpness(2) == 1.0


def test_l2_does_not_see_how_long_queries_and_keys_are():
    model = shaken(small("qk-norm", form="l2"))
    before = model(tokens()).logits
    with torch.no_grad():
        for layer in model.model.layers:
            layer.attention.query.weight.mul_(7.0)
    torch.testing.assert_close(model(tokens()).logits, before, rtol=0, atol=TIGHT)


def test_an_epsilon_is_taken():
    model = small("qk-norm", **{"attention.epsilon": 1e-3})
    assert model.model.layers[0].attention.query_norm.epsilon == 1e-3


def test_inspection_reads_the_norms():
    model = shaken(small("qk-norm", dtype=torch.float32))
    block = model.model.layers[0]
    weights = project(block, anatomy(model).attentions[0], config=model.config)
    assert weights.query_norm == "rms"
    assert torch.equal(weights.query_gain, block.attention.query_norm.weight)
    assert torch.equal(weights.key_gain, block.attention.key_norm.weight)
