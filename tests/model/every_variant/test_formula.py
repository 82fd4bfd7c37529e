"""The formulas of parameters and FLOPs at shapes that share nothing with the usual one."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from layerlab.model.build import build
from layerlab.model.cost.cost import account
from tests.model.exempt import bound
from tests.model.small import tokens

# Shared key-value heads, a head width that is the width over the heads or not, an odd inner width,
# one layer or an even number of them, an odd context.
CONTEXT = 7
SHAPES = {
    "shared": {"width": 40, "heads": 4, "kv_heads": 2, "head_width": 14, "layers": 4, "inner": 37},
    "one": {"width": 24, "heads": 3, "kv_heads": 1, "layers": 1, "inner": 75},
}


@pytest.mark.few(4)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", bound("formula"))
def test_parameters_and_flops_are_as_counted_at_every_shape(name, shape):
    sizes = {**SHAPES[shape], "context": CONTEXT, "vocab": 61}
    model = build(name, **sizes)
    model.set_attn_implementation("eager")
    said = account(model.config.parse_spec(), model.config.shape())
    assert said.parameters == sum(one.numel() for one in model.parameters())
    inside = sum(one.numel() for one in model.get_input_embeddings().parameters())
    assert said.embedding >= inside and min(vars(said).values()) >= 0
    x = tokens(2, CONTEXT)
    with torch.no_grad(), FlopCounterMode(display=False) as counted:
        model(x, use_cache=False)
    assert counted.get_total_flops() == said.forward * x.numel()
