"""Blocks that are computed a second time give the same gradients, and need less memory."""

from contextlib import contextmanager

import pytest
import torch
from torch import nn
from transformers.modeling_outputs import CausalLMOutput

from layerlab.errors import NotApplicable
from layerlab.observe.architecture.structure import anatomy
from layerlab.observe.tracing import gradients as module
from layerlab.observe.tracing.gradients import (
    are_logits,
    logits_and_gradient,
    next_token_loss,
    stream_gradients,
)
from layerlab.observe.tracing.trace import observing
from layerlab.records.layer_names import EMBEDDING
from tests.measures.asked import TOKENS, gradients
from tests.measures.family import FAMILIES, built


@pytest.mark.few(16)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_block_computed_twice_gives_the_same_gradients(family):
    model = built(family)
    tokens = torch.arange(3, 19)
    _, once = gradients(model, tokens=tokens, again=False)
    _, twice = gradients(model, tokens=tokens)
    assert set(twice) == set(once) == set(range(EMBEDDING, len(anatomy(model).blocks)))
    for layer in once:
        torch.testing.assert_close(twice[layer], once[layer], rtol=1e-4, atol=1e-6)
        assert once[layer].any()


@pytest.mark.few(16)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_gradients_of_many_tokens_are_those_of_few(family, monkeypatch):
    model, tokens = built(family), torch.arange(3, 19)
    with observing(model):
        few = stream_gradients(model, anatomy(model), tokens)
        monkeypatch.setattr(module, "MANY_TOKENS", 8)
        monkeypatch.setattr(module, "ROWS", 7)
        many = stream_gradients(model, anatomy(model), tokens)
    assert set(few) == set(many) == set(range(EMBEDDING, len(anatomy(model).blocks)))
    for layer in few:
        torch.testing.assert_close(many[layer], few[layer], rtol=1e-4, atol=1e-6)


def test_gradients_of_a_mean_over_tokens_are_not_lost_in_float16():
    model, tokens = built("llama").half(), torch.arange(3, 63)
    model.model.norm.weight.data.fill_(2.0**-13)
    with observing(model):
        half = stream_gradients(model, anatomy(model), tokens)
    with observing(model.float()):
        true = stream_gradients(model, anatomy(model), tokens)
    for layer in true:
        off = (half[layer] - true[layer]).norm() / true[layer].norm()
        assert off < 0.05


@pytest.mark.parametrize("again", [False, True])
def test_gradients_of_a_large_stream_are_not_lost_in_float16(again):
    model = built("llama").half()
    model.model.embed_tokens.weight.data.mul_(2.0**15)
    model.model.norm.weight.data.fill_(2.0**-6)
    _, half = gradients(model, again=again)
    _, true = gradients(model.float(), again=again)
    for layer in true:
        off = (half[layer] - true[layer]).norm() / true[layer].norm()
        assert off < 0.01


def test_a_block_of_many_tokens_keeps_no_more_than_its_input(tiny, monkeypatch):
    model, kept = tiny("gpt2", n_layer=6), {}
    for most in (8, 4096):
        monkeypatch.setattr(module, "MANY_TOKENS", most)
        with observing(model), counted_tensors(model) as sizes:
            stream_gradients(model, anatomy(model), torch.arange(48))
        kept[most] = sum(sizes)
    assert kept[8] < kept[4096] / 4


def test_the_loss_of_many_rows_is_taken_in_pieces(monkeypatch):
    logits, tokens = torch.randn(1, 40, 9), torch.arange(40) % 9
    expected = nn.functional.cross_entropy(logits[0, :-1], tokens[1:])
    assert next_token_loss(CausalLMOutput(logits=logits), tokens) == expected
    monkeypatch.setattr(module, "ROWS", 7)
    found = next_token_loss(CausalLMOutput(logits=logits), tokens)
    torch.testing.assert_close(found, expected)
    assert next_token_loss(CausalLMOutput(logits=logits[:, :1]), tokens[:1]).isnan()


def test_logits_have_an_entry_for_each_token():
    tokens = torch.arange(9)
    for entries, whole in ((9, True), (8, False)):
        logits = torch.randn(1, 9, entries)
        assert are_logits(logits, tokens) == whole
        assert bool(next_token_loss(CausalLMOutput(logits=logits), tokens).isfinite()) == whole
    assert not are_logits(logits[0], tokens) and not are_logits(None, tokens)


@contextmanager
def counted_tensors(model):
    """How many numbers each tensor has that autograd holds outside what is computed again."""
    sizes = []
    seen = {parameter.data_ptr() for parameter in model.parameters()}

    def pack(tensor):
        if tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield sizes


def saved(model, tokens, again):
    with counted_tensors(model) as sizes:
        gradients(model, tokens=tokens, again=again)
    return sum(sizes)


def test_no_more_than_token_x_width_is_kept_of_a_layer(tiny):
    tokens, held = torch.arange(48), {}
    for depth in (2, 6):
        for again in (True, False):
            held[depth, again] = saved(tiny("gpt2", n_layer=depth), tokens, again)
    # Four blocks more: token x width each. All that they compute is far more than that.
    assert held[6, True] - held[2, True] == 4 * 48 * 16
    assert held[6, False] - held[2, False] > 4 * 8 * 48 * 16


def test_a_stream_that_is_written_over_is_kept_as_a_copy(tiny):
    model = tiny("gpt2")
    _, expected = gradients(model)

    class Over(nn.Module):
        def __init__(self, block):
            super().__init__()
            self.block = block

        def forward(self, hidden, *args, **options):
            out = self.block(hidden, *args, **options)
            hidden.mul_(1)
            return out

    class Sound(nn.Module):
        def __init__(self, block):
            super().__init__()
            self.block = block

        def forward(self, hidden, *args, **options):
            return self.block(hidden + 0, *args, **options)

    blocks = model.transformer.h
    blocks[1] = Over(Sound(blocks[1]))
    _, found = gradients(model)
    for layer in expected:
        torch.testing.assert_close(found[layer], expected[layer], rtol=1e-5, atol=1e-7)


def failing(model, tokens=TOKENS):
    with observing(model), pytest.raises(NotApplicable) as caught:
        logits_and_gradient(model, anatomy(model), tokens, 0, lambda z: z[0], lambda *given: None)
    return str(caught.value)


def test_a_model_without_logits_is_not_applicable(tiny):
    assert failing(tiny("gpt2").transformer) == "it gives no logits"


def test_a_model_without_a_backward_pass_says_so(tiny):
    model = tiny("gpt2")

    class Stubborn(torch.autograd.Function):
        @staticmethod
        def forward(context, features):
            return features.clone()

        @staticmethod
        def backward(context, gradient):
            raise NotImplementedError("no way back")

    class Wall(nn.Module):
        def forward(self, features):
            return Stubborn.apply(features)

    model.transformer.ln_f = Wall()
    assert failing(model) == "its backward pass failed: no way back"


def test_blocks_that_run_twice_have_no_layer(tiny):
    model = tiny("gpt2")

    plain = model.transformer.forward
    model.transformer.forward = lambda *args, **options: (
        plain(*args, **options),
        plain(*args, **options),
    )[1]
    assert failing(model) == "it runs its blocks more than once in one forward"
