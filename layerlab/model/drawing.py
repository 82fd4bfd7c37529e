"""Name-keyed initialisation: each parameter is drawn from hash(seed, its name)."""

import hashlib
from typing import Any

import torch
from torch import nn
from transformers import initialization

from layerlab.blocks.start import Draw, Start, normal, zeros

DEFAULTS: dict[tuple[type[nn.Module], str], Start] = {
    (nn.Linear, "weight"): normal,
    (nn.Linear, "bias"): zeros,
    (nn.Embedding, "weight"): normal,
}


def stream(seed: int, name: str) -> torch.Generator:
    """Random numbers that belong to one parameter of one seed, the same in every process.

    Source: Own.
    """
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest) >> 1)


@torch.no_grad()
def draw(module: nn.Module, prefix: str, config: Any) -> None:
    """Give the parameters that a module itself holds their first values.

    What was loaded from a checkpoint stays: transformers' initialisation functions leave it alone.
    What layers share is drawn where it is lent from, under its first name.

    Source: Own.
    """
    if getattr(module, "lent", False):
        return
    depth = 2 * config.num_hidden_layers
    scaled = config.parsed().stack.initialisation == "depth-scaled"
    std = config.initializer_range
    for name, parameter in module.named_parameters(recurse=False):
        if parameter.is_meta or getattr(parameter, "_is_hf_initialized", False):
            continue
        start = getattr(module, "starts", {}).get(name) or DEFAULTS[_kind(module), name]
        numbers = Draw(
            generator=stream(config.seed, f"{prefix}.{name}".lstrip(".")),
            std=std,
            residual_std=std / depth**0.5 if scaled else std,
        )
        values = start(parameter.shape, numbers)
        initialization.copy_(parameter, values.to(parameter.device, parameter.dtype))


def _kind(module: nn.Module) -> type[nn.Module]:
    return next(kind for kind in type(module).__mro__ if kind in (nn.Linear, nn.Embedding))
