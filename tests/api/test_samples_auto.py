"""As many samples as were asked for; or as a dimension needs, read side by side."""

import pandas as pd
import pytest
import torch

import layerlab
from layerlab.builtin import SAMPLE
from layerlab.loading import inputs
from layerlab.observe.architecture.structure import anatomy
from layerlab.observe.tracing import streams
from tests.support.live_bytes import live_bytes
from tests.support.refused import refuses


def inspected(samples, context=32, names=("dimension", "diversity")):
    asked = {"samples": samples, "context": context, "measures": names}
    return layerlab.inspect("llama", **asked, progress=False)


@pytest.mark.full
def test_functions_cut_a_text_into_as_many_samples_as_they_are_told():
    asked = {"texts": SAMPLE.read_text("utf-8"), "samples": 2, "context": 8, "progress": False}
    found = layerlab.inspect("llama", measures="stream", **asked)
    assert found.models[0]["tokens"] == [8, 8]
    alone = layerlab.inspect("llama", measures="stream", **{**asked, "texts": None})
    assert alone.frame("stream").equals(found.frame("stream"))
    ids = {"texts": None, "input_ids": torch.arange(40).view(2, 20)}
    assert layerlab.gap("llama", **{**asked, **ids}).difference.tokens == 2 * 7


def test_samples_of_no_text_are_refused():
    refuses("weights reads no text", layerlab.inspect, "llama", weights=True, samples=3)
    refuses("leave samples out", layerlab.gap, "llama", logprobs="nothing", samples=3)
    for name in ("gap", "precision"):
        refuses("expected a whole number or None", getattr(layerlab, name), samples="auto")


@pytest.mark.full
def test_the_dimension_reads_more_samples_than_other_measures():
    found, eight = inspected("auto"), inspected(8)
    dimension = found.frame("dimension")
    # The width is 64: 256 tokens are asked for.
    assert set(dimension.tokens) == {256} and dimension.reliable.all()
    pd.testing.assert_frame_equal(dimension, eight.frame("dimension"), rtol=1e-5)
    assert set(found.frame("diversity").sequence) == {0, 1, 2, 3}
    assert found.frame("diversity").equals(inspected(4).frame("diversity"))
    assert not found.to_dict()["measures"][0]["notes"]


@pytest.mark.full
def test_a_text_that_is_too_short_is_read_whole_and_that_is_said():
    short = SAMPLE.read_text("utf-8")[:450]
    asked = {"texts": short, "samples": "auto", "context": 32, "measures": "dimension"}
    found = layerlab.inspect("llama", **asked, progress=False)
    tokens = set(found.frame("dimension").tokens)
    assert len(tokens) == 1 and 128 < tokens.pop() < 256
    assert any("has read every sample" in note for note in found.to_dict()["measures"][0]["notes"])


@pytest.mark.parametrize("together", [32, 128])
def test_what_is_read_side_by_side_is_bounded(tiny, monkeypatch, together):
    monkeypatch.setattr(inputs, "BATCH", together)
    pieces = inputs.divide([torch.arange(32)] * 40, 1000)
    assert len(pieces.each) == 4 and not pieces.short
    assert sum(batch.numel() for batch in pieces.more) == 28 * 32
    assert max(batch.numel() for batch in pieces.more) == together
    assert inputs.divide([torch.arange(32)] * 6, 1000).short


def test_streams_of_several_sequences_are_those_of_each_and_are_not_kept(tiny):
    model = tiny("llama", num_hidden_layers=6)
    stack = anatomy(model)
    batch = torch.arange(24).view(2, 12)
    found: dict[int, torch.Tensor] = {}
    streams.read_streams(model, stack, batch, lambda layer, h: found.update({layer: h.clone()}))
    with torch.no_grad():
        hidden = model.model(input_ids=batch[1:], output_hidden_states=True).hidden_states
    for layer in range(-1, 5):  # behind the last block, transformers hands out the norm
        torch.testing.assert_close(found[layer][12:], hidden[layer + 1][0])
    seen: list[int] = []
    with live_bytes(list(model.parameters())) as counted:
        streams.read_streams(model, stack, batch, lambda layer, h: seen.append(counted.now))
    assert len(seen) == 7 and seen[-1] < seen[2] + 1000
