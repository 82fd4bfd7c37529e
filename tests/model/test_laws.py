"""Laws that hold for every variant there is, at a start that hides nothing."""

import pytest
import torch

from layerlab.model.build import build
from layerlab.model.laws import LAWS, STARTS
from layerlab.variants.registry import variants
from tests.model.exempt import EXEMPT, bound
from tests.model.small import SIZES, kept, shaken, small, tokens
from tests.variants.option import checkpoints


def test_only_variants_that_exist_are_exempt_from_a_law_and_each_for_a_reason():
    named = {name for reasons in EXEMPT.values() for name in reasons}
    assert named <= set(variants())
    assert all(reason for reasons in EXEMPT.values() for reason in reasons.values())


CHECKED = [
    (name, law)
    for name in bound("laws")
    for law in (*LAWS, *(STARTS if variants()[name].start == "identity" else ()))
]


@pytest.mark.few(12)
@pytest.mark.parametrize(("name", "law"), CHECKED)
def test_every_law_that_a_user_can_check_holds(name, law):
    """That each of them can fail is in test_law.py."""
    assert {**LAWS, **STARTS}[law](build(name, **SIZES)) == ""


@pytest.mark.few(3)
@pytest.mark.parametrize("name", bound("eager"))
def test_eager_attention_is_the_same_as_fused_attention(name):
    x = tokens()
    assert kept(name).config._attn_implementation == "sdpa"
    fused = kept(name)(x).logits
    # Eager attention takes its softmax in float32: each weight is off by its roundoff, 6e-8,
    # and so is what a layer adds to the stream; two norms and a head may magnify it a few times.
    atol = 64 * torch.finfo(torch.float32).eps * float(fused.abs().max())
    written = kept(name, "eager")(x).logits
    torch.testing.assert_close(written, fused, rtol=0, atol=atol)


@pytest.mark.few(3)
@pytest.mark.parametrize("name", bound("checkpointing"))
def test_gradient_checkpointing_changes_no_bit_of_a_gradient(name):
    checkpoints(shaken(small(name)))


@pytest.mark.parametrize("name", bound("embeddings"))
def test_embeddings_of_tokens_stand_for_the_tokens(name):
    model, x = kept(name), tokens()
    given = model(inputs_embeds=model.get_input_embeddings()(x)).logits
    assert torch.equal(given, model(x).logits)


@pytest.mark.parametrize("name", bound("outputs"))
def test_hidden_states_and_attentions_come_in_number_and_shape(name):
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
def test_the_head_is_the_embedding_where_the_spec_ties_them_and_only_there(name):
    model = small(name)
    tied = variants()[name].spec.stack.head == "tied"
    assert (model.lm_head.weight is model.get_input_embeddings().weight) == tied
    names = [key for key, _ in model.named_parameters()]
    assert ("lm_head.weight" in names) == (not tied)
