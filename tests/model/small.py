"""The size at which every law is checked: width 48 with 4 heads, no power of 2."""

import functools

import torch
from torch import Tensor

from layerlab.model.build import build
from layerlab.model.laws import SIZES, TIGHT
from layerlab.model.modeling import LabForCausalLM

__all__ = ["SIZES", "TIGHT", "kept", "shaken", "small", "tokens"]


def small(name: str, **changes: object) -> LabForCausalLM:
    """A small model of a variant, in float64 unless told otherwise, not training."""
    dtype = changes.pop("dtype", torch.float64)
    return build(name, **{**SIZES, **changes}).to(dtype).eval()


def tokens(batch: int = 2, length: int = 24, seed: int = 0) -> Tensor:
    """Random tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, SIZES["vocab"], (batch, length), generator=generator)


def shaken(model: LabForCausalLM, seed: int = 0) -> LabForCausalLM:
    """The model with noise on every parameter, so that no start hides what a part does."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.add_(noise * 0.1)
    return model


@functools.cache
def kept(name: str, implementation: str = "sdpa") -> LabForCausalLM:
    """A small shaken model that tests share: they may not change it."""
    model = shaken(small(name)).requires_grad_(False)
    model.set_attn_implementation(implementation)
    return model
