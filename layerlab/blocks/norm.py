"""Norms of the residual stream."""

import torch
from torch import nn
from torch.nn import functional

from layerlab.blocks.cost import Cost
from layerlab.blocks.init import ones, starts, zeros
from layerlab.blocks.part import Option, Part
from layerlab.blocks.shape import Site
from layerlab.shapes import Features
from layerlab.validation import Constraint

EPSILON = Constraint(kind=float, above=0)


class RmsNorm(Part):
    """x / sqrt(mean(x^2) + epsilon) * gain, computed in float32.

    Source: zhang19, equation 4.
    """

    name = "rms"
    slot = "norm"
    options = {"epsilon": Option(default=1e-6, domain=EPSILON, about="added to the mean square")}

    def __init__(self, width: int, site: Site, *, epsilon: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon
        starts(self, weight=ones)

    def forward(self, x: Features) -> Features:
        exact = x.to(torch.float32)
        scale = torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + self.epsilon)
        return self.weight * (exact * scale).to(x.dtype)

    @classmethod
    def cost(cls, width: int, site: Site, **options: object) -> Cost:
        return Cost(scalars=width, pointwise=4 * width)


class LayerNorm(Part):
    """(x - mean(x)) / sqrt(var(x) + epsilon) * gain + bias.

    Source: ba16, equation 4; spectral25, section 1.2.1.
    Differs: spectral25 divides by the standard deviation plus epsilon.
    """

    name = "layer"
    slot = "norm"
    options = {"epsilon": Option(default=1e-5, domain=EPSILON, about="added to the variance")}

    def __init__(self, width: int, site: Site, *, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.epsilon = epsilon
        starts(self, weight=ones, bias=zeros)

    def forward(self, x: Features) -> Features:
        return functional.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.epsilon)

    @classmethod
    def cost(cls, width: int, site: Site, **options: object) -> Cost:
        return Cost(scalars=2 * width, pointwise=6 * width)


class NoNorm(Part):
    """x as it is."""

    name = "none"
    slot = "norm"

    def __init__(self, width: int, site: Site) -> None:
        super().__init__()

    def forward(self, x: Features) -> Features:
        return x

    @classmethod
    def cost(cls, width: int, site: Site, **options: object) -> Cost:
        return Cost()


PARTS = (RmsNorm, LayerNorm, NoNorm)
