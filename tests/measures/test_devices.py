"""Models on another device than their tokens: no measure joins the tensors of both."""

import pytest

import layerlab
from layerlab.known_names import MEASURES
from tests.support.elsewhere import living_elsewhere

IDS = [[number * 7 % 61 for number in range(48)]]
# What an emulated tensor holds cannot be marked.
EMULATING = {"rounding", "logits", "attribution", "gap"}


@pytest.mark.full
@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("name", sorted(set(MEASURES) - EMULATING))
def test_a_measure_reads_a_model_that_lies_elsewhere(tiny, name, family):
    model = tiny(family)
    asked = {"input_ids": IDS, "measures": name, "progress": False}
    expected = layerlab.inspect(model, **asked).frame(name)
    with living_elsewhere(model):
        found = layerlab.inspect(model, **asked).frame(name)
    assert found.equals(expected)
