"""Name-keyed initialisation: each parameter is drawn from hash(seed, its name)."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import initialization

from layerlab.blocks.init import Draw, Start, normal, ones, zeros
from layerlab.errors import UserError
from layerlab.model.parametrization import PLAIN, Scale

DEFAULTS: dict[tuple[type[nn.Module], str], Start] = {
    (nn.Linear, "weight"): normal,
    (nn.Linear, "bias"): zeros,
    (nn.Embedding, "weight"): normal,
    (nn.Conv1d, "weight"): normal,
    (nn.Conv1d, "bias"): zeros,
    (nn.LayerNorm, "weight"): ones,
    (nn.LayerNorm, "bias"): zeros,
    (nn.RMSNorm, "weight"): ones,
}


def stream(seed: int, name: str) -> torch.Generator:
    """Return the random numbers of one parameter and one seed, the same in every process."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest) >> 1)


@torch.no_grad()
def draw(
    module: nn.Module,
    prefix: str,
    config: Any,
    *,
    depth_scaled: bool,
    scales: Mapping[str, Scale] = MappingProxyType({}),
) -> None:
    """Give the parameters that a module itself holds their first values.

    What was loaded from a checkpoint stays: transformers' initialisation functions leave it alone.
    What layers share is drawn where it is lent from, under its first name.

    Args:
        prefix: canonical name of the module.
        config: of the model: its seed, range and depth.
        depth_scaled: whether what joins the stream starts smaller by sqrt(2 layers).
        scales: factors on starts by the names of parameters, where they are not 1.
    """
    if getattr(module, "lent", False):
        return
    depth = 2 * config.num_hidden_layers
    for name, parameter in module.named_parameters(recurse=False):
        if parameter.is_meta or getattr(parameter, "_is_hf_initialized", False):
            continue
        start = _start(module, prefix, name)
        path = f"{prefix}.{name}".lstrip(".")
        factors = scales.get(path, PLAIN)
        std = config.initializer_range * factors.std
        numbers = Draw(
            generator=stream(config.seed, path),
            std=std,
            residual_std=std / depth**0.5 if depth_scaled else std,
        )
        with _everywhere_alike():
            values = start(parameter.shape, numbers)
            if factors.start != 1:
                values *= factors.start
        initialization.copy_(parameter, _place_like(values, parameter))


def _place_like(values: Tensor, parameter: Tensor) -> Tensor:
    """Return values as a parameter is: its precision, its device, its part if it is shared out."""
    placed = values.to(parameter.device, parameter.dtype)
    if isinstance(parameter, DTensor):
        mesh, placements = parameter.device_mesh, parameter.placements
        placed = distribute_tensor(placed, mesh, placements, src_data_rank=None)
    return placed


def _start(module: nn.Module, prefix: str, name: str) -> Start:
    """Return how a parameter starts: as its module says, or as is usual for modules of its kind."""
    own: Start | None = getattr(module, "starts", {}).get(name)
    usual = (DEFAULTS[kind, name] for kind in type(module).__mro__ if (kind, name) in DEFAULTS)
    start = own or next(usual, None)
    if start is None:
        raise UserError(
            f"nothing says with which values {prefix}.{name} starts, a parameter of "
            f"{type(module).__name__}; expected a start beside it: type starts(self, {name}=normal)"
        )
    return start


@contextmanager
def _everywhere_alike() -> Iterator[None]:
    """Draw in float32 on the CPU whatever the default is, until the context ends.

    In another precision a generator gives other numbers, and on another device it gives none.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu"):
            yield
    finally:
        torch.set_default_dtype(before)
