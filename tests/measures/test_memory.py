"""What a reading holds beside the model: two layers in float64, and activations that are stated."""

import pytest
import torch

import layerlab
from layerlab.measures.quantities.low_precision import rounding
from layerlab.numerics.emulation import weight_rows
from tests.support.live_bytes import live_bytes

pytestmark = pytest.mark.full

TOKENS, WIDTH, LAYERS, WORDS = 8, 128, 6, 64
SHAPE = {
    "hidden_size": WIDTH,
    "intermediate_size": 4 * WIDTH,
    "num_hidden_layers": LAYERS,
    "vocab_size": WORDS,
}
IDS = torch.arange(TOKENS)[None]


def beside(model, read) -> int:
    """Return the most bytes that tensors other than the model's take at once."""
    with live_bytes([*model.parameters(), *model.buffers()]) as found:
        read()
    return found.peak


def layer_bytes(model) -> int:
    return sum(one.numel() * 8 for one in model.model.layers[0].parameters())


@pytest.mark.full
def test_the_default_measures_hold_two_layers_beside_the_model(tiny):
    model = tiny("llama", **SHAPE)
    peak = beside(model, lambda: layerlab.inspect(model, input_ids=IDS, progress=False))
    assert peak < 2 * layer_bytes(model)


@pytest.mark.full
def test_formats_hold_two_layers_and_the_stream_of_the_reference(tiny):
    model = tiny("llama", **SHAPE)
    # Condition numbers, up to a width of 1,024, take a Jacobian besides.
    chosen = {"measures": ["rounding", "logits", "attribution"], "progress": False}
    peak = beside(model, lambda: layerlab.inspect(model, input_ids=IDS, **chosen))
    # The reference, values and errors of a prediction beside it, and what one layer makes.
    streams = 6 * 8 * TOKENS * ((LAYERS + 2) * WIDTH + WORDS)
    assert streams < layer_bytes(model) / 4
    assert peak < 2 * layer_bytes(model) + streams


@pytest.mark.full
def test_formats_hold_some_rows_of_a_head(tiny, monkeypatch):
    words = 1 << 14
    monkeypatch.setattr(weight_rows, "COPIED", words)
    model = tiny("llama", **{**SHAPE, "num_hidden_layers": 1, "vocab_size": words}).bfloat16()
    chosen = {"measures": ["rounding", "logits", "attribution"], "progress": False}
    peak = beside(model, lambda: layerlab.inspect(model, input_ids=IDS[:, :2], **chosen))
    logits = 2 * words * 8
    # What is predicted of logits is there: the head in float64 would take more than all of it.
    assert peak < 2 * layer_bytes(model) + 16 * logits < model.lm_head.weight.numel() * 8


def test_logits_are_compared_some_rows_at_a_time(tiny, monkeypatch):
    model = tiny("llama")
    chosen = {"measures": ["logits"], "progress": False}
    whole = layerlab.inspect(model, input_ids=IDS, **chosen).frame("logits")
    monkeypatch.setattr(rounding, "TOGETHER", 200)
    assert layerlab.inspect(model, input_ids=IDS, **chosen).frame("logits").equals(whole)


@pytest.mark.full
def test_a_search_for_a_policy_holds_two_layers_and_a_copy_in_the_low_dtype(tiny):
    model = tiny("llama", **SHAPE)
    before = [one.clone() for one in model.parameters()]
    peak = beside(model, lambda: layerlab.precision(model, input_ids=IDS, progress=False))
    low = sum(one.numel() * 2 for one in model.parameters())
    assert peak < 2 * layer_bytes(model) + low
    assert all(map(torch.equal, before, model.parameters()))
