"""Where queries and keys lie: the rows that measures read, found in place."""

import copy
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from layerlab import build
from layerlab.training.qk_control.heads import heads_of
from tests.support.refused import refusal


def read(model: PreTrainedModel) -> list[Any]:
    """What the measures read."""
    from layerlab.observe.architecture.head_weights import project
    from layerlab.observe.architecture.structure import anatomy, text_config

    found = anatomy(model)
    return [
        project(found.blocks[part.block], part, config=text_config(model))
        for part in found.attentions
    ]


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_weights_are_those_that_measures_read(family, tiny):
    model = tiny(family)
    for head, weights in zip(heads_of(model), read(model), strict=True):
        assert torch.equal(head.query.weight(), weights.query)
        assert torch.equal(head.key.weight(), weights.key)
        assert head.query.weight().requires_grad
        assert head.group == {"gpt2": 1, "llama": 2}[family]


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_scaling_touches_the_rows_of_one_part_alone(family, tiny):
    model = tiny(family)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    plain = read(copy.deepcopy(model))[0]
    head = heads_of(model)[0]
    factors = torch.arange(2.0, 2.0 + head.key.heads)
    head.key.scale(factors)
    after = read(model)[0]
    assert torch.equal(after.key, plain.key * factors[:, None, None])
    assert torch.equal(after.query, plain.query) and torch.equal(after.value, plain.value)
    changed = {name for name, value in model.state_dict().items() if not value.equal(before[name])}
    assert len(changed) == 1
    if plain.key_bias is not None:
        with torch.no_grad():
            model.transformer.h[0].attn.c_attn.bias.fill_(1.0)
        head.key.scale(factors)
        assert torch.equal(read(model)[0].key_bias, factors[:, None].expand(-1, 8))


def test_matrices_of_our_own_models_are_taken_whole():
    model = build("llama", width=16, layers=2, heads=4, kv_heads=2, vocab=32, context=8)
    first = heads_of(model)[0]
    assert first.query.rows is None and not first.query.turned and first.scaling == 0.5
    assert first.query.module is model.model.layers[0].attention.query


def test_a_layer_that_cannot_be_told_apart_is_refused(tiny):
    model = tiny("gpt2")
    attention = model.transformer.h[1].attn
    attention.__class__ = type("Odd", (type(attention),), {})
    assert refusal(heads_of, model) == (
        "the control section needs the query and key weights of each head, and GPT2LMHeadModel "
        "shows none: the layout of the fused query, key and value of Odd is unknown; "
        "leave the section out"
    )
