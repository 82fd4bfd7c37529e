import importlib.util
import json
import shutil

import pandas as pd
import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

import layerlab
from layerlab import UserError, builtin
from layerlab.loading.model import load_model
from layerlab.loading.weights.by_layer import project_layers
from layerlab.loading.weights.matrices import find_weight_faults, read_matrices
from layerlab.loading.weights.saved import check_changeable, check_finite
from layerlab.numerics.emulation.emulate import emulate
from layerlab.observe.architecture.effective_weights import effective_weight
from layerlab.observe.architecture.head_weights import matrices
from layerlab.system.offload import find_quantized
from tests.observe.architecture.packed_tensor import pack
from tests.support.refused import refuses

# Of packages that are none of ours.
pytestmark = pytest.mark.filterwarnings("ignore")
FIRST = "model.layers.0.self_attn.q_proj"
TOKENS = torch.arange(16)[None]


def test_scales_of_a_quantizer_are_no_weights(tiny):
    model = tiny("llama")
    plain = set(matrices(model.model.layers[0]))
    attention = model.model.layers[0].self_attn
    attention.q_proj.weight_scale = nn.Parameter(torch.ones(16, 2))
    attention.k_proj.weight_scale_inv = nn.Parameter(torch.ones(2, 2))
    attention.v_scale = nn.Parameter(torch.tensor([0.5]))
    found = load_model(model)
    assert set(matrices(model.model.layers[0])) == plain
    assert not any("scale" in one.name for one in read_matrices(found))
    assert "value" not in next(project_layers(model)).refused


def compress(model, scheme, folder, width=None):
    """Save a model as llm-compressor does, and return the weights that it stands for."""
    quantization = pytest.importorskip("compressed_tensors.quantization")
    utils = pytest.importorskip("compressed_tensors.quantization.utils")
    compressors = pytest.importorskip("compressed_tensors.compressors")
    chosen = quantization.preset_name_to_scheme(scheme, ["Linear"])
    if width is not None:
        chosen.weights.group_size = width
    given = quantization.QuantizationConfig(config_groups={"a": chosen}, ignore=["lm_head"])
    quantization.apply_quantization_config(model, given)
    expected = {}
    for path, module in model.named_modules():
        if getattr(module, "quantization_scheme", None) is None:
            continue
        parts = module.weight.detach().unflatten(1, (-1, width or module.in_features))
        scale, zero = utils.calculate_qparams(parts.amin(-1), parts.amax(-1), chosen.weights)
        module.weight_scale.data.copy_(scale)
        expected[path] = quantization.fake_quantize(
            module.weight.detach(), scale, zero, chosen.weights
        )
    saved = compressors.ModelCompressor.from_pretrained_model(model)
    saved.compress_model(model)
    model.save_pretrained(folder)
    saved.update_config(folder)
    return expected


@pytest.mark.full
def test_weights_packed_in_four_bits_are_plain_ones_once_they_are_loaded(tiny, tmp_path):
    expected = compress(tiny("llama"), "W4A16", tmp_path / "packed", width=8)
    found = load_model(str(tmp_path / "packed"))
    assert found.facts()["parameters"] == tiny("llama").num_parameters()
    for path, weight in expected.items():
        torch.testing.assert_close(found.model.get_submodule(path).weight, weight)
    assert not any("scale" in one.name for one in read_matrices(found))
    with emulate(found.model, "bf16"), torch.no_grad():
        found.model(TOKENS)
    torch.testing.assert_close(found.model.get_submodule(FIRST).weight, expected[FIRST])
    found.model.save_pretrained(tmp_path / "plain")
    again = load_model(str(tmp_path / "plain")).model
    with torch.no_grad():
        assert torch.equal(found.model(TOKENS).logits, again(TOKENS).logits)


@pytest.mark.full
def test_activations_that_are_rounded_stay_so_and_are_not_emulated(tiny, tmp_path):
    expected = compress(tiny("llama"), "W8A8", tmp_path / "packed")
    usual = AutoModelForCausalLM.from_pretrained(tmp_path / "packed")
    found = load_model(str(tmp_path / "packed"))
    with torch.no_grad():
        assert torch.equal(usual(TOKENS).logits, found.model(TOKENS).logits)
    assert found.facts()["parameters"] == tiny("llama").num_parameters()
    torch.testing.assert_close(
        effective_weight(found.model.get_submodule(FIRST), "weight"), expected[FIRST]
    )
    for model in (usual, found.model):
        with pytest.raises(UserError, match="is quantized, and what its quantizer computes"):
            emulate(model, "bf16").__enter__()
    refuses("is quantized .compressed-tensors., and packed weights", check_changeable, usual)


def test_a_model_whose_weights_are_tensors_of_another_kind_is_inspected_and_not_changed(tiny):
    model, plain = tiny("llama"), tiny("llama")
    for packed, usual in zip(model.model.layers, plain.model.layers, strict=True):
        packed.mlp.down_proj.weight = nn.Parameter(pack(usual.mlp.down_proj.weight))
        usual.mlp.down_proj.weight = nn.Parameter(packed.mlp.down_proj.weight.dequantize())
    options = {"input_ids": TOKENS, "measures": ["gain", "lipschitz"], "progress": False}
    found, expected = (layerlab.inspect(one, **options) for one in (model, plain))
    for name in ("gain", "lipschitz"):
        pd.testing.assert_frame_equal(found.frame(name), expected.frame(name), rtol=1e-6)
    message = r"is quantized \(model.layers.0.mlp.down_proj\), and packed weights cannot be changed"
    refuses(message, layerlab.retrofit, model, "pangu-pi")


@pytest.mark.full
def test_weights_of_torchao_are_read_as_the_numbers_that_they_stand_for(tiny):
    torchao = pytest.importorskip("torchao.quantization")
    model = tiny("llama")
    torchao.quantize_(model, torchao.Int8WeightOnlyConfig(version=2))
    found = load_model(model)
    module = model.get_submodule(FIRST)
    assert torch.equal(effective_weight(module, "weight"), module.weight.dequantize())
    assert len(list(read_matrices(found))) == len(list(read_matrices(load_model(tiny("llama")))))
    assert find_weight_faults(found) == [] and find_quantized(model) == FIRST
    check_finite(model)


@pytest.mark.full
@pytest.mark.parametrize("options", [{"load_in_4bit": True}, {"load_in_8bit": True}])
def test_weights_of_bitsandbytes_are_those_of_its_products(tiny, tmp_path, options):
    pytest.importorskip("bitsandbytes")
    from transformers.integrations.bitsandbytes import dequantize_bnb_weight

    tiny("llama", hidden_size=64, intermediate_size=128).save_pretrained(tmp_path)
    given = BitsAndBytesConfig(**options)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=given)
    module = model.get_submodule(FIRST)
    fresh = dequantize_bnb_weight(module.weight, getattr(module, "state", None)).float()
    with torch.no_grad():
        model(TOKENS)  # packs its weights otherwise
    torch.testing.assert_close(
        effective_weight(module, "weight").float(), fresh, atol=3e-3 * fresh.abs().max(), rtol=0.01
    )
    found = load_model(model)
    assert found.packed is None and found.facts()["parameters"] == sum(
        one.numel() for one in tiny("llama", hidden_size=64, intermediate_size=128).parameters()
    )


@pytest.mark.skipif(importlib.util.find_spec("torchao") is not None, reason="torchao is installed")
def test_a_package_that_is_missing_is_named_with_what_installs_it(tmp_path):
    shutil.copytree(builtin.path("llama"), tmp_path / "model")
    file = tmp_path / "model/config.json"
    kind = {"default": {"_type": "Int8WeightOnlyConfig", "_data": {}, "_version": 2}}
    told = {"quant_method": "torchao", "quant_type": kind}
    file.write_text(json.dumps({**json.loads(file.read_text()), "quantization_config": told}))
    refuses("No module named 'torchao.*; type pip install torchao", load_model, str(file.parent))
