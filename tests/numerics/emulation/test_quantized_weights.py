"""Weights that formats with scales round, against products that families do and a hand's work."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

from layerlab.numerics.emulation.arithmetic import make_arithmetic
from layerlab.numerics.emulation.emulate import Emulation, emulate
from layerlab.numerics.emulation.op_site import OpSite
from layerlab.numerics.emulation.quantized_weights import is_matrix
from layerlab.numerics.formats.formats import find
from layerlab.numerics.formats.round import round_to
from tests.families.products import Summed
from tests.families.recipe import TOKENS, build

LEFT = ("lm_head", "wte", "embed_tokens", "embeddings", "gate", "router", "shared_expert_gate")
IDS = torch.arange(3, 3 + TOKENS)[None]


def in_format(model: nn.Module, format: str, **own: str) -> set[str]:
    """Parameters that have the format of weights."""
    run = Emulation(model, make_arithmetic(format, **own))
    places = {path: OpSite(*path.rpartition(".")[::2]) for path, _ in model.named_parameters()}
    weights = run.arithmetic.weights
    return {p for p, at in places.items() if run.find_format(model.get_parameter(p), at) == weights}


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "family", ["gpt2", "qwen2_moe", "jamba", "gpt_oss", "mixtral", "mamba", "rwkv", "jetmoe"]
)
def test_scales_are_for_what_products_read_but_for_head_and_router(family):
    model = build(family).float().eval()
    with torch.no_grad(), Summed(model) as heard:
        model(input_ids=IDS, use_cache=False)
    read = {path for path in heard.found if is_matrix(path, model.get_parameter(path))}
    left = {path for path in read if {*path.split(".")[:-1]} & {*LEFT, "head"}}
    assert left and in_format(model, "mxfp4") == read - left


@pytest.mark.parametrize("format", ["mxfp4", "int8:channel", "nvfp4"])
def test_a_model_in_a_format_with_scales_is_the_one_whose_linear_layers_are_quantized(format):
    model = build("qwen2").float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 2)
    by_hand = copy.deepcopy(model)
    layers = [one for one in by_hand.model.modules() if isinstance(one, nn.Linear)]
    for one in layers:
        one.weight.data = round_to(one.weight.data, format)
        one.forward = lambda x, one=one: linear(round_to(x, format), one.weight, one.bias)
    with torch.no_grad():
        exact, wanted = model(IDS).logits, by_hand(IDS).logits
    with emulate(model, "fp32", weights=format, activations=format):
        found = model(IDS).logits
    assert (found - wanted).norm() < 0.05 * (wanted - exact).norm()


def test_each_expert_has_scales_of_its_own():
    model = build("mixtral")
    path = "model.layers.0.mlp.experts"
    weight = model.get_submodule(path).gate_up_proj.detach()
    weight[0] *= 1e3
    emulation = Emulation(model, make_arithmetic("int8"))
    found = emulation._weight(weight, OpSite(path, "gate_up_proj"), find("int8"))
    assert torch.equal(found, torch.stack([round_to(one, "int8") for one in weight]))
    assert not torch.equal(found, round_to(weight, "int8"))


def test_gains_and_biases_are_no_factors():
    model = build("qwen2")
    everything = {path for path, _ in model.named_parameters()}
    assert in_format(model, "fp8_e4m3") == in_format(model, "bf16") == everything
    apart = {path for path in everything if model.get_parameter(path).dim() == 1}
    assert in_format(model, "bf16", weights="fp8_e4m3") == everything - apart
