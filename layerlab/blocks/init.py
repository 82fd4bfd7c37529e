"""With which values a parameter starts, and over which axes it sums: kept beside the parameter.

A model draws each parameter from its own stream of random numbers, so a start never depends on
what else a variant holds. Modules keep their starts in a dict `starts` by local parameter name:
functions or frozen values of a module, no closures, so that a model can be pickled. Whoever draws
sees to it that they run in float32 on the CPU, where their numbers are the same everywhere.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Draw:
    """Random numbers for one parameter.

    Attributes:
        std: standard deviation of ordinary weights.
        residual_std: that of the matrices that write into the residual stream.
    """

    generator: torch.Generator
    std: float
    residual_std: float


Start = Callable[[torch.Size, Draw], Tensor]


@dataclass(frozen=True)
class Constant:
    """The same number everywhere."""

    value: float

    def __call__(self, shape: torch.Size, draw: Draw) -> Tensor:
        return torch.full(shape, self.value)


def normal(shape: torch.Size, draw: Draw) -> Tensor:
    """Draw from a Gaussian with the model's standard deviation."""
    return torch.randn(shape, generator=draw.generator) * draw.std


def residual(shape: torch.Size, draw: Draw) -> Tensor:
    """Draw from a Gaussian with the standard deviation of matrices that write into the stream.

    Source: radford19, section 2.3.
    """
    return torch.randn(shape, generator=draw.generator) * draw.residual_std


def zeros(shape: torch.Size, draw: Draw) -> Tensor:
    """Return zeros."""
    return torch.zeros(shape)


def ones(shape: torch.Size, draw: Draw) -> Tensor:
    """Return ones."""
    return torch.ones(shape)


def linear(inputs: int, outputs: int, *, bias: bool = False, start: Start = normal) -> nn.Linear:
    """Return a linear layer that notes how its weight starts; biases start at zero."""
    module = nn.Linear(inputs, outputs, bias=bias)
    starts(module, weight=start, bias=zeros)
    return module


def starts(module: nn.Module, **given: Start) -> None:
    """Note how the parameters that a module itself holds start."""
    vars(module)["starts"] = {**getattr(module, "starts", {}), **given}


@dataclass(frozen=True, kw_only=True)
class Axes:
    """The axes of a parameter by what they index.

    Attributes:
        read: features that are summed over.
        written: features that come out; an axis may be both, as in a circulant matrix.
    """

    read: tuple[int, ...] = ()
    written: tuple[int, ...] = ()


def axes(module: nn.Module, **given: Axes) -> None:
    """Note the axes of the parameters that a module itself holds, where they are not the usual."""
    vars(module)["axes"] = {**getattr(module, "axes", {}), **given}


def axes_of(module: nn.Module, name: str) -> Axes:
    """Return the axes of a parameter: those that its module notes, else the usual ones.

    A matrix reads along its last axis and writes along the others; a vector stands beside the
    features, as a gain or a bias does; a row of an embedding is looked up, and nothing is summed.
    """
    noted: dict[str, Any] = getattr(module, "axes", {})
    if name in noted:
        found: Axes = noted[name]
        return found
    dimensions = getattr(module, name).dim()
    if dimensions < 2:
        return Axes(written=tuple(range(dimensions)))
    if isinstance(module, nn.Embedding):
        return Axes(written=(dimensions - 1,))
    return Axes(read=(dimensions - 1,), written=tuple(range(dimensions - 1)))
