"""Activations by name: functions of one number, applied to every feature."""

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from layerlab.blocks.init import Constant, starts
from layerlab.shapes import Features
from layerlab.validation import Constraint


class Prelu(nn.Module):
    """max(0, x) + slope min(0, x), one slope for every channel, learned.

    Source: he15, equation 1.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.full((width,), 0.25))
        starts(self, slope=Constant(0.25))

    def forward(self, x: Features) -> Features:
        # torch's kernel takes channels on the second axis of two.
        rows = x.reshape(-1, x.shape[-1])
        return functional.prelu(rows, self.slope.to(x.dtype)).view_as(x)


class Activation(nn.Module):
    """A function without parameters, as a module."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Features) -> Features:
        return activate(x, self.name)

    def extra_repr(self) -> str:
        return self.name


SQRT_2_PI = math.sqrt(2 / math.pi)
NAMES = ("silu", "gelu", "gelu-tanh", "relu", "relu2", "tanh", "sigmoid", "none")
NAMED = Constraint(kind=str, choices=NAMES)
WITH_PRELU = Constraint(kind=str, choices=(*NAMES, "prelu"))


def activate(x: Features, name: str) -> Features:
    """Apply the named function to every feature; "none" leaves the features as they are.

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


class _GeluTanh(torch.autograd.Function):
    """Forward in the order of GPT-2's code, backward by torch's fused kernel.

    Left to autograd, the chain of eight operations saves eight tensors and costs more than half of
    what the two matrix products beside it do.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Features) -> Features:
        cubed = torch.pow(x, 3.0).mul_(0.044715).add_(x)
        return (0.5 * x).mul_(cubed.mul_(SQRT_2_PI).tanh_().add_(1.0))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Features], output: Features) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Features) -> Features:
        return torch.ops.aten.gelu_backward(gradient, *ctx.saved_tensors, approximate="tanh")

    @staticmethod
    def jvp(ctx: Any, tangent: Features) -> Features:
        return torch.ops.aten.gelu_backward(tangent, *ctx.saved_tensors, approximate="tanh")


def gelu_tanh(x: Features) -> Features:
    """Return GELU by a hyperbolic tangent, in the order of GPT-2's code.

    x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2

    Source: hendrycks16, section 2.

    Differs: torch's fused function rounds in another order; GPT-2 and GPT-1 use this one.
    """
    if torch.compiler.is_compiling():  # a compiler fuses the chain by itself
        return 0.5 * x * (1.0 + torch.tanh(SQRT_2_PI * (x + 0.044715 * torch.pow(x, 3.0))))
    value: Features = _GeluTanh.apply(x)
    return value


def apply_slope(gradient: Features, x: Features, name: str) -> Features:
    """Return a gradient times the derivative of `activate` at x, in one pass over memory."""
    ops = torch.ops.aten
    match name:
        case "silu":
            return ops.silu_backward(gradient, x)
        case "gelu":
            return ops.gelu_backward(gradient, x)
        case "gelu-tanh":
            return ops.gelu_backward(gradient, x, approximate="tanh")
        case "relu":
            return ops.threshold_backward(gradient, x, 0)
        case "relu2":
            return gradient * 2 * functional.relu(x)
        case "tanh":
            return ops.tanh_backward(gradient, torch.tanh(x))
        case "sigmoid":
            return ops.sigmoid_backward(gradient, torch.sigmoid(x))
    return gradient


def activation_unit(name: str, width: int) -> nn.Module:
    """Return the named activation as a module for features of this width."""
    return Prelu(width) if name == "prelu" else Activation(name)
