"""Which way experts are stored, on every family: an axis of the model's width says it."""

import pytest
import torch
from transformers.pytorch_utils import Conv1D

from layerlab.numerics.emulation.arithmetic import make_arithmetic
from layerlab.numerics.emulation.emulate import Emulation
from layerlab.numerics.emulation.op_site import OpSite
from layerlab.numerics.formats.round import round_to
from layerlab.numerics.formats.weight_layout import has_inputs_first
from tests.families.recipe import FAMILIES, UNBUILT, build

TURNED = ("aria_text", "gpt_oss", "llama4", "llama4_text")
INPUTS = ("gate_up_proj", "up_proj")  # what reads the stream; down_proj writes into it


@pytest.mark.parametrize(
    "family",
    [
        one if one in (*TURNED, "mixtral") else pytest.param(one, marks=pytest.mark.full)
        for one in sorted(FAMILIES.keys() - UNBUILT.keys())
    ],
)
def test_experts_say_which_way_they_are_stored(family: str) -> None:
    model = build(family)
    own = getattr(model.config.get_text_config(), "hidden_size", None)  # BLT has several
    said = {}
    for path, weight in model.named_parameters():
        module, _, name = path.rpartition(".")
        if weight.ndim == 3 and name in (*INPUTS, "down_proj") and ".experts" in path:
            inputs, outputs = weight.shape[1:] if name in INPUTS else weight.shape[:0:-1]
            if inputs != outputs:
                said[path] = inputs == own
                assert has_inputs_first(model.get_submodule(module), weight) == said[path], path
    assert any(said.values()) == (family in TURNED)


def test_a_matrix_is_turned_in_conv1d_alone() -> None:
    one = Conv1D(3, 2)
    assert has_inputs_first(one, one.weight) and not has_inputs_first(one, one.bias)
    assert not has_inputs_first(torch.nn.Linear(2, 3), torch.ones(3, 2))
    assert not has_inputs_first(None, torch.ones(2, 3))


@pytest.mark.parametrize("family", TURNED)
def test_blocks_of_experts_lie_along_their_inputs(family: str) -> None:
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
