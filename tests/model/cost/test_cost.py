"""The formulas of parameters and FLOPs against what is there and what PyTorch counts."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from layerlab.model.cost.cost import account
from layerlab.variants.registry import variants
from tests.model.small import SIZES, small, tokens

NAMES = list(variants())


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_as_counted(name: str) -> None:
    model = small(name, device="meta")
    said = account(model.config.parsed(), model.config.shape())
    assert said.parameters == sum(one.numel() for one in model.parameters())
    inside = sum(one.numel() for one in model.get_input_embeddings().parameters())
    assert said.embedding >= inside
    assert min(vars(said).values()) >= 0


@pytest.mark.parametrize("name", NAMES)
def test_flops_are_as_pytorch_counts_them(name: str) -> None:
    model = small(name, dtype=torch.float32).train()
    model.set_attn_implementation("eager")
    said = account(model.config.parsed(), model.config.shape())
    x = tokens(2, SIZES["context"])
    with FlopCounterMode(display=False) as forward:
        logits = model(x).logits
    assert forward.get_total_flops() == said.forward * x.numel()
    with FlopCounterMode(display=False) as backward:
        logits.sum().backward()
    assert backward.get_total_flops() == said.backward * x.numel()
