"""Weights that are widened and rounded one layer at a time, also those that wait elsewhere."""

import tempfile

import pytest
import torch
from accelerate import cpu_offload, disk_offload

from layerlab.errors import UserError
from layerlab.numerics.emulation.arithmetic import exact, make_arithmetic
from layerlab.numerics.emulation.attribution import outputs
from layerlab.numerics.emulation.emulate import Emulation, emulate
from tests.support.live_bytes import live_bytes

IDS = torch.arange(8)[None]
SHAPE = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 6, "vocab_size": 64}


def logits(model, run, **options):
    with run.running(**options):
        return model(input_ids=IDS, use_cache=False).logits


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["bf16", "float64", "fp8_e4m3", "mxfp4"])
def test_a_run_by_layer_gives_the_same_bits_and_holds_one_layer(tiny, kind):
    model = tiny("llama", **SHAPE)
    arithmetic = exact(torch.float32) if kind == "float64" else make_arithmetic(kind)
    layer = sum(p.numel() * 8 for p in model.model.layers[0].parameters())
    given = [*model.parameters(), *model.buffers()]
    with live_bytes(given) as counted:
        by_layer = logits(model, Emulation(model, arithmetic), by_layer=True)
    assert counted.peak < 2 * layer
    with live_bytes(given) as counted:
        whole = logits(model, Emulation(model, arithmetic))
    if kind == "float64":
        assert counted.peak > 6 * layer
    assert torch.equal(by_layer, whole)


def test_stochastic_rounding_draws_each_weight_once(tiny):
    model = tiny("llama")
    arithmetic = make_arithmetic("bf16", rounding="stochastic")
    first = logits(model, Emulation(model, arithmetic), by_layer=True)
    assert torch.equal(first, logits(model, Emulation(model, arithmetic)))


@pytest.mark.few(1)
@pytest.mark.parametrize("store", ["cpu", "disk"])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_model_whose_weights_wait_elsewhere_gives_the_same_bits(tiny, family, store):
    model = tiny(family)
    here = outputs(Emulation(model, make_arithmetic("bf16")), lambda: model(IDS), ())[-1]
    plain = model(IDS).logits
    with tempfile.TemporaryDirectory() as scratch:
        if store == "cpu":
            cpu_offload(model, torch.device("cpu"))
        else:
            disk_offload(model, scratch, torch.device("cpu"))
        assert all(weight.is_meta for weight in model.parameters())
        with emulate(model, "bf16"):
            away = model(IDS).logits
        assert torch.equal(away, here)
        assert all(weight.is_meta for weight in model.parameters())
        assert torch.equal(model(IDS).logits, plain)


def test_a_model_without_weights_anywhere_is_refused(tiny):
    model = tiny("llama").to("meta")
    with pytest.raises(UserError, match="is on the meta device, which holds no numbers; load"):
        logits(model, Emulation(model, make_arithmetic("bf16")))
