"""As many tokens as a dimension needs, read side by side, and no more than the text has."""

from dataclasses import replace

import pandas as pd
import pytest
import torch

from layerlab.api.inspect import InspectionRequest, run_inspection
from layerlab.loading import inputs
from layerlab.loading.text_input import sample
from layerlab.observe.architecture.structure import anatomy
from layerlab.observe.tracing import streams
from layerlab.plugins import resolve
from tests.support.live_bytes import live_bytes


def inspected(samples, context=32, names=("dimension", "diversity")):
    asked = InspectionRequest(
        models=["llama"],
        passage=sample(samples=samples, context=context),
        measures=resolve(list(names)),
    )
    return run_inspection(asked, progress=False)


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
    asked = sample(samples="auto", context=32)
    short = replace(asked, texts=(asked.texts[0][:450],))
    request = InspectionRequest(models=["llama"], passage=short, measures=resolve(["dimension"]))
    found = run_inspection(request, progress=False)
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
