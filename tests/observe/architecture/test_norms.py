import pytest
import torch
from torch import nn

from layerlab.observe.architecture.norms import front_norm, norm
from layerlab.observe.architecture.structure import anatomy
from tests.measures.family import built, layers


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("width", [4, 7, 32])
def test_a_norm_is_read_from_what_it_gives_back(kind, width):
    weight, bias = torch.randn(2, width, generator=torch.Generator().manual_seed(width))
    module = nn.LayerNorm(width) if kind == "layer" else nn.RMSNorm(width)
    module.weight.data.copy_(weight)
    if kind == "layer":
        module.bias.data.copy_(bias)
    found = norm(module, width)
    assert found is not None and found.kind == kind
    assert torch.equal(found.gain, weight)
    assert found.shift is None if kind == "rms" else torch.equal(found.shift, bias)


def test_the_gain_of_gemma_is_one_plus_its_weight():
    model = built("gemma")
    layer = model.model.layers[0]
    found = norm(layer.input_layernorm, 32)
    assert found is not None
    torch.testing.assert_close(found.gain, 1 + layer.input_layernorm.weight, rtol=2**-23, atol=0)


def test_a_large_weight_of_gemma_is_told_from_one_more_in_a_coarse_format():
    module = built("gemma").model.layers[0].input_layernorm.to(torch.bfloat16)
    module.weight.data.copy_(torch.arange(16, 48))
    found = norm(module, 32)
    assert found is not None and torch.equal(found.gain, torch.arange(17.0, 49.0))


def test_a_norm_without_weights_has_gain_one():
    model = built("olmo")
    weights = layers(model)[0][0]
    assert weights.norm == "layer" and weights.shift is None
    torch.testing.assert_close(weights.gain, torch.ones(32), rtol=8 * 2**-23, atol=0)


@pytest.mark.parametrize("module", [nn.Identity(), nn.Linear(8, 8), nn.Tanh(), nn.Conv1d(1, 1, 1)])
def test_what_is_not_a_norm_is_not_taken_for_one(module):
    assert norm(module, 8) is None


def test_a_post_norm_block_has_no_norm_in_front():
    for family, path in (("openai-gpt", "transformer.h.1"), ("opt post", "model.decoder.layers.1")):
        model = built(family)
        block = model.get_submodule(path)
        part = anatomy(model).attentions[1]
        assert front_norm(block, part.module) is None


def test_broken_weights_do_not_hide_the_norm():
    module = nn.LayerNorm(8)
    module.weight.data[3] = torch.nan
    found = norm(module, 8)
    assert found is not None and found.kind == "layer" and bool(found.gain[3].isnan())
