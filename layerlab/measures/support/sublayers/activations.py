"""Lipschitz constants of elementwise activations, and which activation a feed-forward layer has."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isfinite

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, kw_only=True)
class Elementwise:
    """An elementwise function and sup |f'|, rounded up in the fifth decimal.

    Source: pangu23, Lemma 1 (that only this constant matters).
    """

    name: str
    function: Callable[[Tensor], Tensor]
    lipschitz: float

    def slope(self, given: Float[Tensor, "*batch _ _"]) -> Float[Tensor, " *batch"] | float:
        """Return a bound on |f'| where it is between the numbers of a matrix, or anywhere else.

        That of the squared ReLU grows without end: it is that at the largest of them.
        """
        if isfinite(self.lipschitz):
            return self.lipschitz
        return 2 * given.abs().amax((-2, -1))

    def local_slope(self, given: Tensor) -> Tensor | float:
        """Return a bound on |f'| at each number: by it an error of that number is carried on."""
        if isfinite(self.lipschitz):
            return self.lipschitz
        return 2 * given.clamp_min(0)


@dataclass(frozen=True, kw_only=True)
class Series:
    """The scales and shifts of the terms of a series of activations, term x channel."""

    scales: Float[Tensor, "term channel"]
    shifts: Float[Tensor, "term channel"]

    def forms(self, one: Elementwise) -> list[Elementwise]:
        """Return the series of one activation, in every form that it is known in.

        f(a_1 z + b_1) + sum over i > 1 of [f(a_i z + b_i) - f(b_i)], or without what is taken off;
        or sum over i of a_i f(z + b_i). Each has max over channels of sum_i |a_i| L as its slope.

        Source: pangu23, equation 7 and Theorem 7; chen23, series activation.
        Differs: Theorem 7 leaves the scales out.
        """
        steepest = float(self.scales.abs().sum(0).max()) * one.lipschitz
        rest = one.function(self.shifts[1:]).sum(0)

        def inside(z: Tensor) -> Tensor:
            terms = zip(self.scales, self.shifts, strict=True)
            return torch.stack([one.function(a * z + b) for a, b in terms]).sum(0)

        def outside(z: Tensor) -> Tensor:
            terms = zip(self.scales, self.shifts, strict=True)
            return torch.stack([a * one.function(z + b) for a, b in terms]).sum(0)

        functions = (inside, lambda z: inside(z) - rest, outside)
        name = f"{len(self.scales)} x {one.name}"
        return [Elementwise(name=name, function=f, lipschitz=steepest) for f in functions]


def list_series(block: nn.Module) -> list[Series]:
    """Return what may be a series: sibling modules that each hold a scale and a shift alone."""
    pairs: dict[str, list[list[Tensor]]] = {}
    for path, module in block.named_modules():
        held = [one for _, one in module.named_parameters(recurse=False)]
        if len(held) == 2 and held[0].ndim == 1 and held[0].shape == held[1].shape:
            pairs.setdefault(path.rpartition(".")[0], []).append([one.float() for one in held])
    return [
        Series(
            scales=torch.stack([scale for scale, _ in terms]),
            shifts=torch.stack([shift for _, shift in terms]),
        )
        for parent, terms in pairs.items()
        if parent and len(terms) > 1 and len({len(scale) for scale, _ in terms}) == 1
    ]


def _activation(name: str, lipschitz: float, function: Callable[[Tensor], Tensor]) -> Elementwise:
    return Elementwise(name=name, lipschitz=lipschitz, function=function)


ACTIVATIONS = (
    # sup of Phi(x) + x phi(x) is at sqrt(2): 1.128904146
    _activation("gelu", 1.12891, functional.gelu),
    # at 1.418504: 1.128993069
    _activation("gelu-tanh", 1.12900, lambda x: functional.gelu(x, approximate="tanh")),
    # at 2.399357: 1.099839321; a scale inside x * sigmoid(c x) changes where, not how much
    _activation("silu", 1.09984, functional.silu),
    _activation("quick-gelu", 1.09984, lambda x: x * torch.sigmoid(1.702 * x)),
    # at 1.490575: 1.088498
    _activation("mish", 1.08850, functional.mish),
    _activation("relu", 1.0, functional.relu),
    _activation("relu6", 1.0, functional.relu6),
    _activation("leaky-relu", 1.0, functional.leaky_relu),
    _activation("elu", 1.0, functional.elu),
    # its scale times its alpha, on the negative side at 0: 1.758099
    _activation("selu", 1.75810, functional.selu),
    _activation("softplus", 1.0, functional.softplus),
    _activation("hardswish", 1.5, functional.hardswish),
    _activation("tanh", 1.0, torch.tanh),
    _activation("sigmoid", 0.25, torch.sigmoid),
    _activation("relu-squared", inf, lambda x: functional.relu(x).square()),
    _activation("identity", 1.0, lambda x: x),
)
"""What is tried on the data of a feed-forward layer; infinite: the slope grows without end."""
