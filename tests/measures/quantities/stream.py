"""Streams of random features, and layers that hold them."""

import torch
from torch import Tensor

from layerlab.observe.tracing.records import Layer, Sublayer


def features(seed: int, tokens: int = 6, width: int = 4, mean: float = 0.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tokens, width, generator=generator, dtype=torch.float64) + mean


def record(
    stream: Tensor,
    layer: int = 1,
    sequence: int = 0,
    entered: Tensor | None = None,
    **branches: Tensor,
) -> Layer:
    sublayers = {
        name: Sublayer(entered=branch, left=branch, branch=branch)
        for name, branch in branches.items()
    }
    return Layer(
        sequence=sequence,
        layer=layer,
        tokens=torch.arange(len(stream)),
        stream=stream,
        entered=entered,
        sublayers=sublayers,
    )
