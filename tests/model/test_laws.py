"""Laws that hold for every variant there is, at a start that hides nothing."""

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from layerlab.model.modeling import LabForCausalLM
from layerlab.variants.registry import variants
from tests.model.exempt import EXEMPT, bound
from tests.model.small import SIZES, TIGHT, kept, shaken, small, tokens

CHUNKS = (1, 7, 1, 1, 2, 9, 3)  # of what is read at once: single tokens and longer pieces


def same(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=TIGHT)


def test_only_variants_that_exist_are_exempt_from_a_law_and_each_for_a_reason() -> None:
    named = {name for reasons in EXEMPT.values() for name in reasons}
    assert named <= set(variants())
    assert all(reason for reasons in EXEMPT.values() for reason in reasons.values())


@pytest.mark.parametrize("name", bound("causality"))
def test_a_token_sees_nothing_that_comes_later(name: str) -> None:
    model, x = kept(name), tokens()
    y = x.clone()
    y[:, 12:] = (y[:, 12:] + 1) % SIZES["vocab"]
    before, after = model(x).logits, model(y).logits
    same(before[:, :12], after[:, :12])
    assert not torch.allclose(before[:, 12:], after[:, 12:])


@pytest.mark.parametrize("name", bound("cache"))
def test_with_a_cache_is_the_same_as_all_at_once(name: str) -> None:
    model, x = kept(name), tokens()
    cache = DynamicCache(config=model.config)
    steps = [
        model(piece, past_key_values=cache, use_cache=True).logits for piece in x.split(CHUNKS, 1)
    ]
    assert cache.get_seq_length() == x.shape[1]
    same(torch.cat(steps, 1), model(x, use_cache=False).logits)


@pytest.mark.parametrize("name", bound("eager"))
def test_eager_attention_is_the_same_as_fused_attention(name: str) -> None:
    x = tokens()
    assert kept(name).config._attn_implementation == "sdpa"
    fused = kept(name)(x).logits
    # Eager attention takes its softmax in float32: each weight is off by its roundoff, 6e-8,
    # and so is what a layer adds to the stream; two norms and a head may magnify it a few times.
    atol = 64 * torch.finfo(torch.float32).eps * float(fused.abs().max())
    written = kept(name, "eager")(x).logits
    torch.testing.assert_close(written, fused, rtol=0, atol=atol)


def gradients(model: LabForCausalLM, x: Tensor) -> dict[str, Tensor | None]:
    model.zero_grad()
    model(x, labels=x, use_cache=False).loss.backward()
    return {key: one.grad for key, one in model.named_parameters()}


@pytest.mark.parametrize("name", bound("gradient"))
def test_gradient_reaches_every_parameter(name: str) -> None:
    found = gradients(shaken(small(name)).train(), tokens())
    missed = [key for key, one in found.items() if one is None or not one.abs().sum() > 0]
    assert missed == []


@pytest.mark.parametrize("name", bound("checkpointing"))
def test_gradient_checkpointing_changes_no_bit_of_a_gradient(name: str) -> None:
    model, x = shaken(small(name)).train(), tokens()
    plain = gradients(model, x)
    calls = []
    for attention in {layer.attention for layer in model.model.layers}:  # some share it
        attention.register_forward_pre_hook(lambda *_: calls.append(1))
    for reentrant in (
        False,
        True,
    ):  # the latter sees no tensor that travels inside of another thing
        calls.clear()
        model.activation_checkpointing_enable({"use_reentrant": reentrant})
        again = gradients(model, x)
        assert len(calls) == 2 * SIZES["layers"], "every layer runs again in the backward pass"
        for key, one in plain.items():
            assert one is not None and torch.equal(one, again[key]), (key, reentrant)


@pytest.mark.parametrize("name", bound("embeddings"))
def test_embeddings_of_tokens_stand_for_the_tokens(name: str) -> None:
    model, x = kept(name), tokens()
    given = model(inputs_embeds=model.get_input_embeddings()(x)).logits
    assert torch.equal(given, model(x).logits)


@pytest.mark.parametrize("name", bound("outputs"))
def test_hidden_states_and_attentions_come_in_number_and_shape(name: str) -> None:
    model, x = kept(name, "eager"), tokens()
    given = model(x, output_hidden_states=True, output_attentions=True)
    layers = SIZES["layers"]
    shapes = [tuple(one.shape) for one in given.hidden_states]
    assert shapes == [(2, 24, SIZES["width"])] * (layers + 1)
    shapes = [tuple(one.shape) for one in given.attentions]
    assert shapes == [(2, SIZES["heads"], 24, 24)] * layers
    for weights in given.attentions:
        rows = weights.sum(-1)
        eps = torch.finfo(torch.float32).eps  # of the softmax of eager attention
        torch.testing.assert_close(rows, torch.ones_like(rows), rtol=0, atol=24 * eps)
        assert not weights.triu(1).any()
    assert torch.equal(given.logits, model(x).logits)


@pytest.mark.parametrize("name", bound("tied"))
def test_the_head_is_the_embedding_where_the_spec_ties_them_and_only_there(name: str) -> None:
    model = small(name)
    tied = variants()[name].spec.stack.head == "tied"
    assert (model.lm_head.weight is model.get_input_embeddings().weight) == tied
    names = [key for key, _ in model.named_parameters()]
    assert ("lm_head.weight" in names) == (not tied)
