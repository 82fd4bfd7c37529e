"""Published families as ours: what they say, bit for bit, and what cannot be taken."""

from functools import partial

import pytest
import torch
from transformers import GPT2Config, GPT2Model, PreTrainedModel

from layerlab import UserError
from layerlab.model.surgery.convert import read
from layerlab.model.surgery.retrofit import rebuild, step0
from tests.model.family import FAMILIES, pretrained


@pytest.mark.parametrize("kind", FAMILIES)
def test_reference_has_the_same_logits_bit_for_bit(kind):
    model = pretrained(kind)
    model.set_attn_implementation("eager")
    new = rebuild(model, None, {})
    said = step0(model, new)
    assert said.identical and said.scale > 0.1
    assert said.added == 0 and said.dropped == ()


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2"])
def test_rebuilt_model_generates_the_same(kind):
    model = pretrained(kind)
    new = rebuild(model, None, {})
    start = torch.tensor([[3, 7, 5]])
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(model.generate(start, **options), new.generate(start, **options))


def test_scaled_rotary_positions_are_kept():
    scaled = {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8,
    }
    model = pretrained("llama", rope_parameters=scaled)
    assert step0(model, rebuild(model, None, {})).identical
    plain = rebuild(pretrained("llama"), None, {})
    assert not step0(model, plain).identical


def test_weights_are_shared_on_demand_where_they_need_not_be_transposed():
    model = pretrained("llama")
    new = rebuild(model, None, {}, shared=True)
    theirs = model.model.layers[0].self_attn.q_proj.weight
    assert new.model.layers[0].attention.query.weight.data_ptr() == theirs.data_ptr()


def test_a_fused_activation_is_the_same_function_in_another_rounding():
    model = pretrained("gpt2", activation_function="gelu_pytorch_tanh")
    said = step0(model, rebuild(model, None, {}))
    assert said.dropped == () and said.added == 0
    # Some units of roundoff in each of 96 inner features, carried through 2 layers.
    assert said.difference <= 96 * torch.finfo(torch.float32).eps * said.scale


def configured(kind: str, **changes: object) -> PreTrainedModel:
    """A model whose configuration says something else than what it was built from."""
    model = pretrained(kind)
    for name, value in changes.items():
        setattr(model.config, name, value)
    return model


def headless() -> PreTrainedModel:
    return GPT2Model(GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=8, n_positions=8))


ROTATED = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
REFUSED = {
    "uses sliding_window, which the reference block": partial(
        pretrained, "mistral", sliding_window=8
    ),
    "uses layer_types, which the reference block": partial(
        pretrained, "qwen2", layer_types=["full_attention", "sliding_attention"]
    ),
    "uses scale_attn_by_inverse_layer_idx": partial(
        pretrained, "gpt2", scale_attn_by_inverse_layer_idx=True
    ),
    "expected one rate: set them equal in model.config": partial(
        pretrained, "gpt2", attn_pdrop=0.3
    ),
    "attention_dropout is 0.1, of attention weights alone": partial(
        pretrained, "llama", attention_dropout=0.1
    ),
    "of this model is not one of ours": partial(pretrained, "llama", hidden_act="mish"),
    "only a part of each head is rotated": partial(configured, "llama", rope_parameters=ROTATED),
    "cannot rebuild a model of type 'mamba'": partial(configured, "llama", model_type="mamba"),
    "has no language-modelling head": headless,
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_the_reference_block_does_not_have_is_refused(message):
    model = REFUSED[message]()
    with pytest.raises(UserError, match=message):
        read(model)
