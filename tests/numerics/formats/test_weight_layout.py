"""How weights are stored, on every family: along their inputs the model's own products sum them."""

import copy

import pytest
import torch
from torch import Tensor
from transformers.pytorch_utils import Conv1D

from layerlab.numerics.emulation.arithmetic import make_arithmetic
from layerlab.numerics.emulation.emulate import Emulation, emulate
from layerlab.numerics.emulation.op_site import OpSite
from layerlab.numerics.formats.round import round_to
from layerlab.numerics.formats.weight_layout import find_layout
from tests.families.products import Summed, walked
from tests.families.recipe import FAMILIES, TOKENS, UNBUILT, build

TURNED = ("aria_text", "gpt_oss", "llama4", "llama4_text")
OTHERS = ("dbrx", "gpt2", "inkling2_text", "inkling_text", "mixtral", "recurrent_gemma", "xlnet")


@pytest.mark.parametrize(
    "family",
    [
        one if one in (*TURNED, *OTHERS) else pytest.param(one, marks=pytest.mark.full)
        for one in sorted(FAMILIES.keys() - UNBUILT.keys())
    ],
)
def test_a_weight_is_summed_along_what_is_said_to_be_its_inputs(family):
    model = build(family).float().eval()
    with torch.no_grad(), Summed(model) as heard:
        model(input_ids=torch.arange(3, 3 + TOKENS)[None], use_cache=False)
    assert heard.found
    for path, weight in model.named_parameters():
        module, _, name = path.rpartition(".")
        matrices = find_layout(model.get_submodule(module), name, weight).to_matrices(weight)
        told = tuple(walked(weight, matrices.shape[-1], matrices.stride(-1)))
        # An embedding that is not tied is looked up and never multiplied.
        assert heard.found.get(path, {told}) == {told}, path


def test_a_matrix_is_turned_in_conv1d():
    one = Conv1D(3, 2)
    assert find_layout(one, "weight", one.weight).inputs_first
    assert not find_layout(one, "bias", one.bias).inputs_first
    for module in (torch.nn.Linear(2, 3), None):
        weight = torch.ones(3, 2)
        assert find_layout(module, "weight", weight).to_matrices(weight) is weight


@pytest.mark.parametrize("family", TURNED)
def test_blocks_of_experts_lie_along_their_inputs(family):
    model = build(family)
    path, weight = next(
        (path, weight) for path, weight in model.named_parameters() if path.endswith("gate_up_proj")
    )
    with torch.no_grad():
        weight[0, 0] *= 1e3  # an input that is larger than the others
    module, _, name = path.rpartition(".")
    emulation = Emulation(model, make_arithmetic("mxfp4"))
    found = emulation._weight(weight.detach(), OpSite(module, name), emulation.arithmetic.weights)
    wanted = round_to(weight.detach().mT.contiguous(), "mxfp4").mT
    assert torch.equal(found, wanted)
    assert not torch.equal(found, round_to(weight.detach(), "mxfp4"))


def by_channel(weight: Tensor, *inputs: int) -> Tensor:
    """Eight bits, with one scale for all inputs of an output."""
    scale = weight.abs().amax(inputs, keepdim=True) / 127
    return (weight / scale).round() * scale


def dbrx(name: str, weight: Tensor) -> Tensor:
    experts = weight.unflatten(0, (4, -1))
    return by_channel(experts, 1 if name.endswith("w2") else 2).flatten(0, 1)


def xlnet(name: str, weight: Tensor) -> Tensor:
    return by_channel(weight, *((1, 2) if name.endswith("o") else (0,)))


@pytest.mark.parametrize(
    ("family", "where", "names", "rounded"),
    [
        ("dbrx", "*.experts.mlp", (".w1", ".v1", ".w2"), dbrx),
        ("xlnet", "*.rel_attn", tuple(f"attn.{one}" for one in "qkvor"), xlnet),
    ],
)
def test_scales_of_a_model_are_those_of_its_outputs(family, where, names, rounded):
    """Quantized by hand, each output of every expert with a scale of its own."""
    model = build(family).float().eval()
    tokens = torch.arange(3, 3 + TOKENS)[None]
    by_hand = copy.deepcopy(model)
    for name, weight in by_hand.named_parameters():
        if name.endswith(names):
            weight.data = rounded(name, weight.data)
    with torch.no_grad(), emulate(model, "fp32", where=where, weights="int8:channel"):
        found = model(input_ids=tokens).logits
    with torch.no_grad():
        wanted, exact = by_hand(input_ids=tokens).logits, model(input_ids=tokens).logits
    assert (found - wanted).norm() < 1e-3 * (wanted - exact).norm()
