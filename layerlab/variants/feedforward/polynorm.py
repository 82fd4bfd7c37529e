"""Polynomial activations: powers of a feature with learned weights (PolyNorm, PolyReLU)."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from layerlab.blocks.cost import Cost
from layerlab.blocks.ffn import BIAS, Plain
from layerlab.blocks.init import Constant, starts, zeros
from layerlab.blocks.norm import EPSILON
from layerlab.blocks.part import Option
from layerlab.blocks.shape import Site
from layerlab.blocks.spec import BlockSpec, Choice, Spec, Variant
from layerlab.shapes import Features
from layerlab.validation import Constraint
from layerlab.variants.feedforward.normed_powers import normed_powers

FORM = Option(
    default="norm",
    domain=Constraint(kind=str, choices=("norm", "relu")),
    about="PolyNorm: each power is RMS-normed; PolyReLU: powers of max(0, x)",
)
ORDER = Option(
    default=3,
    domain=Constraint(kind=int, least=1, most=8),
    about="the highest power, r in the source",
)


class Polynomial(nn.Module):
    """PolyNorm: sum of a_i RMS(x^i) + a_0; PolyReLU: sum of a_i max(0, x)^i + a_0; i from 1 to r.

    The r + 1 weights are numbers; a_i start at 1/r and a_0 at 0.

    Source: zhuo24, section 2.

    Differs: powers and norms are taken in float32 where features are shorter.
    """

    def __init__(self, form: str, order: int, epsilon: float) -> None:
        super().__init__()
        self.form, self.order, self.epsilon = form, order, epsilon
        self.weight = nn.Parameter(torch.ones(order))
        self.bias = nn.Parameter(torch.zeros(1))
        starts(self, weight=Constant(1 / order), bias=zeros)

    def forward(self, x: Features) -> Features:
        if self.form == "norm":
            return normed_powers(x, self.weight, self.bias, self.epsilon)
        base = functional.relu(x.to(torch.promote_types(x.dtype, torch.float32)))
        total = self.weight[-1] * base
        for weight in reversed(self.weight[:-1].unbind()):
            total = (total + weight) * base
        return (total + self.bias).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.form}, order={self.order}"


class PolynomialFeedForward(Plain):
    """P(x W_up) W_down with a polynomial P whose weights are learned.

    Source: zhuo24, section 2.
    """

    name = "polynorm"
    options = {
        "form": FORM,
        "order": ORDER,
        "bias": BIAS,
        "epsilon": Option(default=1e-6, domain=EPSILON, about="added to the mean square"),
    }
    # The norm runs over all inner features, so they are gathered on every device.
    plan = {"up": "colwise_gather_output", "down": "rowwise_split_input"}

    def __init__(
        self,
        width: int,
        site: Site,
        *,
        form: str = "norm",
        order: int = 3,
        bias: bool = False,
        epsilon: float = 1e-6,
    ) -> None:
        super().__init__(width, site, activation="none", bias=bias)
        self.activation = Polynomial(form, order, epsilon)

    @classmethod
    def cost(cls, width: int, site: Site, **options: Any) -> Cost:
        order = options.get("order", 3)
        each = 6 if options.get("form", "norm") == "norm" else 3
        plain = super().cost(width, site, bias=options.get("bias", False))
        return plain + Cost(scalars=order + 1, pointwise=each * order * site.shape.inner)


PARTS = (PolynomialFeedForward,)

VARIANTS = (
    Variant(
        name="polynorm",
        spec=Spec(block=BlockSpec(ffn=Choice("polynorm"))),
        equation="x <- x + (sum over i = 1..3 of a_i RMS((RMS(x) W_up)^i) + a_0) W_down",
        source="zhuo24, section 2",
        about="A learned polynomial in place of the gated activation: interactions of higher order "
        "between features. Form relu is PolyReLU.",
        cost="Four numbers per layer; with an inner width of 4 widths as many weights as the "
        "gated baseline, and three norms of the inner features: eager, on one CPU thread at width "
        "256, a step takes about 5 % longer.",
        inner=4.0,
    ),
)
