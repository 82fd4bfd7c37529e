"""Draws for stochastic rounding on the device of what is rounded, whatever generator is given.

Torch draws on a device with a generator of that device alone. One of another device gives the seed
instead: the same seed gives the same result on the same device, and two calls differ.
"""

import torch
from torch import Tensor

SEEDS = 2**63 - 1


def generator_on(device: torch.device, generator: torch.Generator | None) -> torch.Generator | None:
    """Return what draws on a device; None is torch's own there."""
    if generator is None or _is_on(device, generator):
        return generator
    return _make(device, _draw_seed(generator))


def seed_on(device: torch.device, generator: torch.Generator | None) -> Tensor:
    """Return a fresh seed as one whole number on a device, without waiting for the device."""
    if generator is None or _is_on(device, generator):
        return torch.randint(SEEDS, (1,), generator=generator, device=device)
    # Filled there, not copied: a copy of what lies in ordinary memory is waited for.
    return torch.full((1,), _draw_seed(generator), device=device)


def _is_on(device: torch.device, generator: torch.Generator) -> bool:
    own = generator.device
    return own == device or (own.type == device.type and own.index is None)


def _draw_seed(generator: torch.Generator) -> int:
    return int(torch.randint(SEEDS, (), generator=generator, device=generator.device))


def _make(device: torch.device, seed: int) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)
