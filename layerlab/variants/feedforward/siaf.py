"""The series activation of PanGu-pi: several activations in parallel, each scaled and shifted.

Every form starts as its first term alone, to the bit: a further term is zero where its own scale,
matrix or kernel is zero. What differs between terms of one activation is their shift, drawn small;
equal terms would get equal gradients and stay equal for ever.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from layerlab.blocks.activation import NAMES, Activation, activate
from layerlab.blocks.context import Flow
from layerlab.blocks.cost import Cost, linear_cost
from layerlab.blocks.init import Draw, Start, linear, ones, residual, starts, zeros
from layerlab.blocks.operations.convolution import CausalConvolution
from layerlab.blocks.operations.derivative import is_replaced
from layerlab.blocks.part import Option, Part
from layerlab.blocks.shape import Site
from layerlab.errors import UserError
from layerlab.shapes import Features, Stream
from layerlab.validation import Constraint
from layerlab.variants.feedforward.series_sum import resting, series

CURVED = tuple(name for name in NAMES if name != "none")
FLAT_BELOW = ("relu", "relu2")
"""No gradient passes them at or below zero: a term that starts there would never leave."""

SPREAD = 0.01
"""Standard deviation of the shifts of further terms."""


def draw_scattered(shape: torch.Size, draw: Draw) -> Tensor:
    """Draw from a Gaussian with standard deviation 0.01."""
    return torch.randn(shape, generator=draw.generator) * SPREAD


def draw_scattered_above(shape: torch.Size, draw: Draw) -> Tensor:
    """Draw absolute values of a Gaussian with standard deviation 0.01."""
    return draw_scattered(shape, draw).abs()


def first_only(shape: torch.Size, draw: Draw) -> Tensor:
    """Return a kernel that reads the present token alone."""
    kernel = torch.zeros(shape)
    kernel[:, 0] = 1.0
    return kernel


def apart(name: str) -> Start:
    """Return how the shift of a further term starts: off zero, and where the gradient passes."""
    return draw_scattered_above if name in FLAT_BELOW else draw_scattered


@dataclass(frozen=True, kw_only=True)
class Names(Constraint):
    """One of the choices, or a list of them."""

    def __contains__(self, value: Any) -> bool:
        several = value if isinstance(value, list | tuple) else [value]
        return len(several) > 0 and all(Constraint.__contains__(self, one) for one in several)

    def __str__(self) -> str:
        return f"{Constraint.__str__(self)}, or a list of them"


class Inner(nn.Module):
    """The term activation(a x + b); a further term is that less activation(b).

    Source: pangu23, equation 7.
    """

    def __init__(self, name: str, numbers: int, *, further: bool) -> None:
        super().__init__()
        self.name, self.further = name, further
        self.scale = nn.Parameter(torch.ones(numbers))
        self.shift = nn.Parameter(torch.zeros(numbers))
        starts(self, scale=zeros if further else ones, shift=apart(name) if further else zeros)

    def forward(self, x: Features) -> Features:
        scale, shift = self.scale.to(x.dtype), self.shift.to(x.dtype)
        y = activate(torch.addcmul(shift, x, scale), self.name)
        return y - resting(shift, x, self.name) if self.further else y


class Outer(nn.Module):
    """The term a activation(x + b).

    Source: chen23, series activation.
    """

    def __init__(self, name: str, numbers: int, *, further: bool) -> None:
        super().__init__()
        self.name = name
        self.scale = nn.Parameter(torch.ones(numbers))
        self.shift = nn.Parameter(torch.zeros(numbers))
        starts(self, scale=zeros if further else ones, shift=apart(name) if further else zeros)

    def forward(self, x: Features) -> Features:
        scale, shift = self.scale.to(x.dtype), self.shift.to(x.dtype)
        return activate(x + shift, self.name) * scale


class Projected(nn.Module):
    """The further term activation(x W + b) - activation(b).

    Source: pangu23, equation 9.
    """

    def __init__(self, name: str, width: int, inner: int, numbers: int) -> None:
        super().__init__()
        self.name = name
        self.projection = linear(width, inner, start=zeros)
        self.shift = nn.Parameter(torch.zeros(numbers))
        starts(self, shift=apart(name))

    def forward(self, x: Features) -> Tensor:
        z = self.projection(x)
        shift = self.shift.to(z.dtype)
        return activate(z + shift, self.name) - resting(shift, z, self.name)


class Shifted(nn.Module):
    """activation(x + b).

    Source: chen23, neighbour form of the series activation.
    """

    def __init__(self, name: str, numbers: int) -> None:
        super().__init__()
        self.name = name
        self.shift = nn.Parameter(torch.zeros(numbers))
        starts(self, shift=zeros)

    def forward(self, x: Features) -> Features:
        return activate(x + self.shift.to(x.dtype), self.name)


class Siaf(Part):
    """(S(x W_gate) * (x W_up)) W_down, or S(x W_up) W_down, with a series S of n activations f_i.

    affine-in         S(z) = sum over i of f_i(a_i z + b_i)
    scale-out         S(z) = sum over i of a_i f_i(z + b_i)
    multi-projection  S = sum over i of f_i(x W_i + b_i), with W_1 as before and b_1 = 0
    convolution       S(z)_t = sum over j of a_j f(z_(t-j) + b), j from 0 below n

    One term is the activation as it was, without parameters of its own. Otherwise a_1 = 1, b_1 = 0
    and a_i = 0 or W_i = 0 at the start.

    Source: pangu23, equations 7 and 9; scale-out and convolution: chen23, series activation and its
        neighbour form.
    Differs: in affine-in and multi-projection a term from the second on is less its value at rest,
        f_i(b_i): a term whose scale is zero adds nothing, whatever its shift, so that the start is
        the plain activation and shifts may differ there. The source says neither how the series
        starts nor whether its numbers are one per channel.
    Differs: where f_i is flat below zero (relu, relu2), shifts start above it: a term that starts
        at zero would get no gradient, ever.
    Differs: the convolution looks back only, over n tokens; chen23 looks n places to every side.
    """

    name = "siaf"
    slot = "ffn"
    options = {
        "n": Option(default=2, domain=Constraint(kind=int, least=1, most=16), about="terms"),
        "form": Option(
            default="affine-in",
            domain=Constraint(
                kind=str, choices=("affine-in", "scale-out", "multi-projection", "convolution")
            ),
            about="what tells the terms apart: scales inside or outside, matrices, earlier tokens",
            unsaid=True,
        ),
        "activations": Option(
            default="silu",
            domain=Names(kind=str, choices=CURVED),
            about="one function for all terms, or a list of n",
            unsaid=True,
        ),
        "granularity": Option(
            default="channel",
            domain=Constraint(kind=str, choices=("channel", "scalar")),
            about="whether scales and shifts are one per channel or one per layer",
            unsaid=True,
        ),
        "position": Option(
            default="gate",
            domain=Constraint(kind=str, choices=("gate", "product")),
            about="whether further terms act on the gate, or on the gated product and add to it",
            unsaid=True,
        ),
        "body": Option(
            default="swiglu",
            domain=Constraint(kind=str, choices=("swiglu", "mlp")),
            about="three matrices with a gate, or two",
        ),
        "bias": Option(
            default=False, domain=Constraint(kind=bool), about="whether the matrices have biases"
        ),
    }
    # Scales and shifts are whole on every device, so the features between the matrices are, too.
    plan = {
        "gate": "colwise_gather_output",
        "up": "colwise_gather_output",
        "down": "rowwise_split_input",
    }

    @classmethod
    def given(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        chosen = super().given(options)
        names, n, form = chosen["activations"], chosen["n"], chosen["form"]
        several = not isinstance(names, str)
        if several and len(names) != n:
            raise UserError(
                f"activations names {len(names)} functions for n={n} terms; expected one name or "
                f"one for each term: type n={len(names)}, or activations={names[0]}"
            )
        if several and form == "convolution" and len(set(names)) > 1:
            raise UserError(
                f"the convolution form has one activation for all tokens, got {names!r}; "
                f"type activations={names[0]}, or form=affine-in"
            )
        if chosen["position"] == "product" and chosen["body"] == "mlp":
            raise UserError(
                "position='product' needs a gate, which body='mlp' lacks; type position=gate, or "
                "body=swiglu"
            )
        if chosen["position"] == "product" and form == "multi-projection":
            raise UserError(
                "terms with matrices of their own do not read the product; type position=gate "
                "beside form=multi-projection"
            )
        return chosen

    def __init__(self, width: int, site: Site, **options: Any) -> None:
        super().__init__()
        self.chosen = self.given(options)
        inner, bias = site.shape.inner, self.chosen["bias"]
        self.gated = self.chosen["body"] == "swiglu"
        if self.gated:
            self.gate = linear(width, inner, bias=bias)
        self.up = linear(width, inner, bias=bias)
        self.down = linear(inner, width, bias=bias, start=residual)
        self.terms = nn.ModuleList(self._terms(width, inner))
        self.neighbours = self._neighbours(inner)

    def forward(self, x: Stream, flow: Flow) -> Stream:
        product = self.chosen["position"] == "product"
        z = self.gate(x) if self.gated else self.up(x)
        if product:
            y = self._on_product(z, self.up(x))
        else:
            y = self._sum(z, x)
        if self.neighbours is not None:
            y = self.neighbours(y, flow)
        if self.gated and not product:
            y = y * self.up(x)
        out: Stream = self.down(y)
        return out

    def _sum(self, z: Tensor, x: Stream) -> Tensor:
        terms = [one for one in self.terms if isinstance(one, Inner)]
        if terms and not any(map(is_replaced, terms)):
            names = [one.name for one in terms]
            return series(z, names, [one.scale for one in terms], [one.shift for one in terms])
        first, *further = self.terms
        y, source = first(z), x if self.chosen["form"] == "multi-projection" else z
        for term in further:
            y = y + term(source)
        found: Tensor = y
        return found

    def _on_product(self, z: Features, up: Features) -> Features:
        first, *further = self.terms
        product = y = first(z) * up
        for term in further:
            y = y + term(product)
        found: Features = y
        return found

    def _terms(self, width: int, inner: int) -> list[nn.Module]:
        n, form = self.chosen["n"], self.chosen["form"]
        names = name_activations(self.chosen)
        numbers = inner if self.chosen["granularity"] == "channel" else 1
        if n == 1:
            return [Activation(names[0])]
        if form == "multi-projection":
            rest = [Projected(name, width, inner, numbers) for name in names[1:]]
            return [Activation(names[0]), *rest]
        if form == "convolution":
            return [Shifted(names[0], numbers)]
        kind = Inner if form == "affine-in" else Outer
        return [kind(name, numbers, further=at > 0) for at, name in enumerate(names)]

    def _neighbours(self, inner: int) -> CausalConvolution | None:
        n = self.chosen["n"]
        if self.chosen["form"] != "convolution" or n == 1:
            return None
        numbers = inner if self.chosen["granularity"] == "channel" else 1
        return CausalConvolution(numbers, n, first_only)

    @classmethod
    def cost(cls, width: int, site: Site, **options: Any) -> Cost:
        chosen = cls.given(options)
        inner, further = site.shape.inner, chosen["n"] - 1
        numbers = inner if chosen["granularity"] == "channel" else 1
        bias, gated = chosen["bias"], chosen["body"] == "swiglu"
        body = linear_cost(width, inner, bias=bias) + linear_cost(inner, width, bias=bias)
        body += Cost(pointwise=4 * inner)
        if gated:
            body += linear_cost(width, inner, bias=bias) + Cost(pointwise=inner)
        if not further:
            return body
        match chosen["form"]:
            case "multi-projection":
                one = linear_cost(width, inner) + Cost(scalars=numbers, pointwise=7 * inner)
                return sum([one] * further, body)
            case "convolution":
                kernel = numbers * (further + 1)
                work = inner * (2 * further + 2)
                past = inner * further
                return body + Cost(weights=kernel, scalars=numbers, pointwise=work, cached=past)
        extra = Cost(scalars=2 * numbers * (further + 1), pointwise=2 * inner + 8 * inner * further)
        return body + extra


def name_activations(chosen: Mapping[str, Any]) -> list[str]:
    """Return the activation of each term."""
    names = chosen["activations"]
    return [names] * chosen["n"] if isinstance(names, str) else list(names)


PARTS = (Siaf,)
