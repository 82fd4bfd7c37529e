"""What a pass over a model leaves out is said, and is no part of what a study says of all of it."""

import pytest
import torch

from layerlab import UserError
from layerlab.errors import NotApplicable
from layerlab.studies.engine.runner import study
from layerlab.studies.support.passages import for_each_attention, for_each_layer, get_model
from tests.families.examination import subject
from tests.families.recipe import build
from tests.studies.small import made

QUICK = {"fast": True, "draws": 4, "progress": False, "threads": 1}
IDS = torch.arange(3, 27)[None]


def test_a_block_whose_output_is_not_finite_is_not_left_out():
    whole, seen = subject(build("llama")), []
    spoil = whole.stack.blocks[1].register_forward_hook(lambda *given: given[2] * torch.inf)
    for walk in (for_each_layer, for_each_attention):
        with pytest.raises(NotApplicable, match=r"on a passage its layer 1 has \d+ of \d+ featur"):
            walk(whole, IDS, lambda layer: seen.append(layer.layer))
    assert 1 not in seen
    spoil.remove()
    for_each_layer(whole, IDS, lambda layer: seen.append(layer.layer))
    assert 1 in seen


def test_an_attention_that_is_not_heard_is_not_left_out():
    """Of a verdict on all heads of all layers, in the words of whoever asked for it."""
    model = build("llama")
    part = model.model.layers[1].self_attn
    forward = part.forward

    def twice(*given, **options):
        forward(*given, **options)
        return forward(*given, **options)

    part.forward = twice
    seen = []
    with pytest.raises(NotApplicable, match=r"attention is not seen: .*self_attn.* 2 times"):
        for_each_attention(subject(model), IDS, lambda layer: seen.append(layer.layer))
    assert 1 not in seen
    # Of its features nothing is lacking.
    for_each_layer(subject(model), IDS, lambda layer: seen.append(layer.layer))
    assert 1 in seen


def test_blocks_that_pass_on_another_shape_are_refused_where_a_stream_is_read():
    model, words = made("gpt2"), get_model("llama").tokenizer
    # A stream of token x batch, as some families have it.
    model.transformer.drop.register_forward_hook(lambda *given: given[2].transpose(0, 1))
    with pytest.raises(UserError, match="do not pass on one vector for each token"):
        study("collapse-depth", model=model, tokenizer=words, layers=2, width=16, **QUICK)
    seen = []
    for_each_attention(subject(model), IDS, lambda layer: seen.append(layer.layer))
    assert seen == [0, 1, 2]
