"""Activations by name: functions of one number, applied to every feature."""

import torch
from torch import nn
from torch.nn import functional

from layerlab.blocks.start import constant, starts
from layerlab.domain import Domain
from layerlab.shapes import Features


class Prelu(nn.Module):
    """max(0, x) + slope min(0, x), one slope for every channel, learned.

    Source: he15, equation 1.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.full((width,), 0.25))
        starts(self, slope=constant(0.25))

    def forward(self, x: Features) -> Features:
        return torch.where(x >= 0, x, self.slope * x)


class Activation(nn.Module):
    """A function without parameters, as a module."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Features) -> Features:
        return activated(x, self.name)

    def extra_repr(self) -> str:
        return self.name


NAMES = ("silu", "gelu", "gelu-tanh", "relu", "relu2", "tanh", "sigmoid", "none")
NAMED = Domain(kind=str, choices=NAMES)
WITH_PRELU = Domain(kind=str, choices=(*NAMES, "prelu"))


def activated(x: Features, name: str) -> Features:
    """The named function of every feature; "none" leaves them.

    silu x / (1 + e^-x), also called Swish; gelu x Phi(x); gelu-tanh its approximation; relu2
    max(0, x)^2.

    Source: hendrycks16, section 2; ramachandran17, section 4; so21, section 3.1.
    """
    match name:
        case "silu":
            return functional.silu(x)
        case "gelu":
            return functional.gelu(x)
        case "gelu-tanh":
            return gelu_tanh(x)
        case "relu":
            return functional.relu(x)
        case "relu2":
            return functional.relu(x).square()
        case "tanh":
            return torch.tanh(x)
        case "sigmoid":
            return torch.sigmoid(x)
    return x


def gelu_tanh(x: Features) -> Features:
    """X (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2, in the order of GPT-2's code.

    Source: hendrycks16, section 2.

    Differs: torch's fused function rounds in another order; GPT-2 and GPT-1 use this one.
    """
    inner = 0.7978845608028654 * (x + 0.044715 * torch.pow(x, 3.0))
    return 0.5 * x * (1.0 + torch.tanh(inner))


def activation_unit(name: str, width: int) -> nn.Module:
    """The named activation as a module for features of this width.

    Source: Own.
    """
    return Prelu(width) if name == "prelu" else Activation(name)
