"""Each place of a model has its component, whatever its family calls it."""

import pytest

from layerlab.numerics.emulation.arithmetic import make_arithmetic
from layerlab.numerics.emulation.attribution import outputs
from layerlab.numerics.emulation.emulate import Emulation
from layerlab.observe.architecture.structure import anatomy
from layerlab.studies.budzinskiy25.support.components import COMPONENTS, OTHER
from layerlab.studies.budzinskiy25.support.model_components import ComponentIndex
from layerlab.studies.support.passages import get_model, tokens_of
from tests.families.examination import subject, tokens
from tests.families.recipe import FAMILIES, UNBUILT, build

OPTIONAL = {"embedding + position", "rotary positions", OTHER}
# What a block of each has, by the end of the place's name.
EXPECTED = {
    "gpt_neox": {
        "attention:scores": "scores and softmax",
        "attention:softmax": "scores and softmax",
        "attention:context": "weighted sum",
        "attention.query_key_value": "queries, keys, values",
        "attention.dense": "attention output",
        "attention:mul": "rotary positions",
        "mlp.dense_h_to_4h": "feed-forward",
    },
    "bloom": {
        "self_attention:scores": "scores and softmax",
        "self_attention:softmax": "scores and softmax",
        "self_attention:context": "weighted sum",
        "self_attention.query_key_value": "queries, keys, values",
        "self_attention.dense": "attention output",
        "self_attention:add": "residual stream",
        "mlp:add": "residual stream",
        "transformer:mul": "embedding + position",
        "word_embeddings_layernorm": "norms",
    },
    "falcon": {
        "self_attention:scores": "scores and softmax",
        "self_attention:mul": "rotary positions",
    },
    "gpt_neo": {
        "attn.attention:scores": "scores and softmax",
        "attn.attention:context": "weighted sum",
        "attn.attention.out_proj": "attention output",
    },
    "gptj": {"attn:mul": "rotary positions", "attn:scores": "scores and softmax"},
    # It scales its queries, and turns nothing.
    "opt": {"self_attn:mul": "scores and softmax", "fc1": "feed-forward", "fc2": "feed-forward"},
    "mpt": {"norm_1": "norms", "attn.Wqkv": "queries, keys, values", "ffn:add": "residual stream"},
    "deepseek_v3": {"self_attn.kv_b_proj": "queries, keys, values"},
    "bert": {
        "attention.self:context": "weighted sum",
        "attention.output.dense": "attention output",
        "attention.output:add": "residual stream",
        "intermediate.dense": "feed-forward",
    },
    "recurrent_gemma": {
        "0.temporal_block.linear_x": OTHER,
        "1.temporal_block.q_proj": "queries, keys, values",
        "mlp_block.up_proj": "feed-forward",
    },
    "cohere": {"lm_head": "logits"},
    "dbrx": {"norm_attn_norm:add": "residual stream", "norm_attn_norm.norm_1": "norms"},
    "llama4_text": {"lm_head": "logits"},
}
# Another attention than the softmax of scores, or none in a module of its own.
WITHOUT = {
    "nemotron_h": {"feed-forward"},
    "reformer": {"weighted sum"},
    "rwkv": {"weighted sum", "attention output"},
    "xlnet": {"queries, keys, values", "attention output", "residual stream"},
    "zaya": {"residual stream"},
    # These run blocks more than once, or several stacks.
    "blt": set(COMPONENTS),
    "hrm_text": set(COMPONENTS),
}


def index(model, stack, ids, mode="flat"):
    run = Emulation(model, make_arithmetic("bf16", mode))
    outputs(run, lambda: model(input_ids=ids, use_cache=False), ())
    return ComponentIndex(model, stack, run.roundings)


@pytest.mark.few(2)
@pytest.mark.parametrize("mode", ["flat", "as-run"])
@pytest.mark.parametrize("name", ["pre-norm", "post-norm", "llama"])
def test_built_in_models_have_no_other_places(name, mode):
    found = index(get_model(name).model, get_model(name).stack, tokens_of(name)[None, :8], mode)
    assert {found.find(place) for place in found.places} <= {*COMPONENTS}


@pytest.mark.few(4)
@pytest.mark.parametrize("family", EXPECTED)
def test_places_have_the_component_that_their_module_is(family):
    model = build(family)
    found = index(model, anatomy(model), tokens()[None])
    for end, component in EXPECTED[family].items():
        named = [p for p in found.places if str(p) == end or str(p).endswith(f".{end}")]
        assert named and {found.find(place) for place in named} == {component}, end


@pytest.mark.full
@pytest.mark.parametrize("family", [one for one in FAMILIES if one not in UNBUILT])
def test_every_family_has_its_components(family):
    model = build(family)
    stack = subject(model).stack
    if isinstance(stack, str) or not stack.attentions:
        pytest.skip("no study of rounding reads it")
    found = index(model, stack, tokens()[None])
    missing = {*COMPONENTS} - OPTIONAL - {found.find(place) for place in found.places}
    assert missing <= WITHOUT.get(family, set())
