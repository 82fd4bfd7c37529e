"""Feed-forward sublayers: two matrices, or three with a gate."""

from collections.abc import Mapping
from typing import Any

from layerlab.blocks.activation import NAMED, WITH_PRELU, activation_unit
from layerlab.blocks.context import Flow
from layerlab.blocks.cost import Cost, linear_cost
from layerlab.blocks.init import linear, residual
from layerlab.blocks.part import Option, Part
from layerlab.blocks.shape import Site
from layerlab.shapes import Stream
from layerlab.validation import Constraint

BIAS = Option(default=False, domain=Constraint(kind=bool), about="whether the matrices have biases")


class Gated(Part):
    """(activation(x W_gate) * (x W_up)) W_down: SwiGLU where the activation is SiLU.

    Source: shazeer20, equation 6.
    """

    name = "swiglu"
    slot = "ffn"
    options = {
        "activation": Option(default="silu", domain=NAMED, about="function of the gate"),
        "bias": BIAS,
    }
    plan = {"gate": "colwise", "up": "colwise", "down": "rowwise"}

    def __init__(
        self, width: int, site: Site, *, activation: str = "silu", bias: bool = False
    ) -> None:
        super().__init__()
        inner = site.shape.inner
        self.gate = linear(width, inner, bias=bias)
        self.up = linear(width, inner, bias=bias)
        self.down = linear(inner, width, bias=bias, start=residual)
        self.activation = activation_unit(activation, inner)

    def forward(self, x: Stream, flow: Flow) -> Stream:
        out: Stream = self.down(self.activation(self.gate(x)) * self.up(x))
        return out

    @classmethod
    def cost(cls, width: int, site: Site, **options: Any) -> Cost:
        inner, bias = site.shape.inner, options.get("bias", False)
        return (
            linear_cost(width, inner, bias=bias)
            + linear_cost(width, inner, bias=bias)
            + linear_cost(inner, width, bias=bias)
            + Cost(pointwise=5 * inner)
        )


class Plain(Part):
    """activation(x W_up) W_down.

    Source: vaswani17, equation 2; spectral25, section 1.2.3.
    """

    name = "mlp"
    slot = "ffn"
    options = {
        "activation": Option(default="gelu-tanh", domain=WITH_PRELU, about="its function"),
        "bias": Option(default=True, domain=Constraint(kind=bool), about=BIAS.about),
    }
    plan = {"up": "colwise", "down": "rowwise"}

    def __init__(
        self, width: int, site: Site, *, activation: str = "gelu-tanh", bias: bool = True
    ) -> None:
        super().__init__()
        inner = site.shape.inner
        self.up = linear(width, inner, bias=bias)
        self.down = linear(inner, width, bias=bias, start=residual)
        self.activation = activation_unit(activation, inner)

    def forward(self, x: Stream, flow: Flow) -> Stream:
        out: Stream = self.down(self.activation(self.up(x)))
        return out

    @classmethod
    def sharding(cls, **options: Any) -> Mapping[str, str]:
        if options.get("activation") == "prelu":
            return {"up": "colwise_gather_output", "down": "rowwise_split_input"}
        return cls.plan

    @classmethod
    def cost(cls, width: int, site: Site, **options: Any) -> Cost:
        inner, bias = site.shape.inner, options.get("bias", True)
        slopes = inner if options.get("activation") == "prelu" else 0
        return (
            linear_cost(width, inner, bias=bias)
            + linear_cost(inner, width, bias=bias)
            + Cost(scalars=slopes, pointwise=4 * inner)
        )


class NoFeedForward(Part):
    """No feed-forward sublayer at all."""

    name = "none"
    slot = "ffn"

    @classmethod
    def present(cls, site: Site, **options: Any) -> bool:
        return False


PARTS = (Gated, Plain, NoFeedForward)
