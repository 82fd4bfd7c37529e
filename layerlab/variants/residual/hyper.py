"""Hyper-connections: n residual streams, read, mixed and written with learned weights."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from layerlab.blocks.cost import Cost, linear_cost
from layerlab.blocks.init import Constant, Draw, linear, starts, zeros
from layerlab.blocks.norm import LayerNorm
from layerlab.blocks.operations.derivative import again, bare, redone
from layerlab.blocks.operations.stream import COLLAPSE, STREAMS, ParallelStreams, sublayer
from layerlab.blocks.operations.stream_mixing import plus, worthwhile
from layerlab.blocks.part import Option
from layerlab.blocks.shape import Site
from layerlab.blocks.spec import Choice, Spec, Variant
from layerlab.shapes import StreamRows, Streams, StreamWeights
from layerlab.validation import Constraint


class NormedRows(torch.autograd.Function):
    """W LayerNorm(x), without keeping the normed x; and x, for what reads it next.

    With C the rows of W gain less their means, it is C x / sqrt(var(x) + epsilon) + W bias, and x
    is passed over for the product and for its moments alone. Backward likewise, and the gradient of
    the x that is handed on is added in the same pass.

    Source: ba16, equation 4; the order of the product and the norm as in xie25, section 4.3.1.
    """

    @staticmethod
    def forward(
        x: Tensor, gain: Tensor, bias: Tensor, weight: Tensor, epsilon: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        mean = x.mean(-1, keepdim=True)
        variance = torch.addcmul(size.square() / x.shape[-1], mean, mean, value=-1)
        scale = torch.rsqrt(variance.clamp_(min=0) + epsilon)
        normed = functional.linear(x, _centre(weight * gain)) * scale
        # Summed as a fresh tensor: the order within a product hangs on where a parameter lies.
        shift = (weight * bias).sum(-1)
        return normed + shift, x.view_as(x), mean, scale, normed

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.epsilon = inputs
        ctx.mark_non_differentiable(*output[2:])
        ctx.save_for_backward(*tensors, *output[2:])

    @staticmethod
    def backward(
        ctx: Any, gradient: Tensor, through: Tensor, *ignored: Any
    ) -> tuple[Tensor | None, ...]:
        x, gain, bias, weight, mean, scale, normed = ctx.saved_tensors
        if redone(gradient, through):

            def plain(x: Tensor, *others: Tensor) -> tuple[Tensor, Tensor]:
                gain, bias, weight = others
                return _normed_rows(x, gain, bias, weight, ctx.epsilon), x

            return *again(plain, (x, gain, bias, weight), (gradient, through)), None
        shrink = (gradient * normed).sum(-1, keepdim=True) * scale.square() / -x.shape[-1]
        scaled = gradient * scale
        centred = torch.cat([_centre(weight * gain), torch.ones_like(weight[:1])])
        pushed = torch.cat([scaled, -shrink * mean], dim=-1)
        rows, total = scaled.flatten(0, -2).t(), gradient.flatten(0, -2).sum(0)
        moved = rows @ x.flatten(0, -2) - rows @ mean.flatten(0, -2)
        own = torch.addr(moved * gain, total, bias)
        slope = plus(through, x, shrink, pushed, centred)
        return slope, (moved * weight).sum(0), total @ weight, own, None


def _normed_rows(x: Tensor, gain: Tensor, bias: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return functional.linear(functional.layer_norm(x, gain.shape, gain, bias, epsilon), weight)


def _product_first(x: Tensor, gain: Tensor, bias: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Return W LayerNorm(x), normed after the product as in `NormedRows`: only x is saved."""
    scale = torch.rsqrt(x.var(-1, keepdim=True, correction=0) + epsilon)
    # Sums of their own, which a compiler takes in one pass with the moments.
    product = torch.stack([(x * row).sum(-1) for row in _centre(weight * gain).unbind()], -1)
    return product * scale + (weight * bias).sum(-1)


def _centre(rows: Tensor) -> Tensor:
    return rows - rows.mean(-1, keepdim=True)


class HyperConnections(ParallelStreams):
    """h = A_m^T H; H' = A_r^T H + B^T F(h).

    A_m = E_m + s_a tanh(N(H) W_m), A_r = E_r + s_a tanh(N(H) W_r), B = E_b + s_b tanh(N(H) W_b)^T.

    The static parts E start such that every stream is the plain residual stream, and the dynamic
    ones at nothing, so that all streams are equal at the start.

    Source: zhu24, equations 2 to 5 and 10 to 14.
    Differs: the streams collapse into their mean, which is n times smaller than the source's sum
    (collapse="sum"): the final norm sees no difference but for its epsilon, and the start is
    exactly the plain residual.
    """

    name = "hyper-connections"
    options = {
        "streams": STREAMS,
        "dynamic": Option(
            default=True,
            domain=Constraint(kind=bool),
            about="whether the weights depend on the token",
        ),
        "scale": Option(
            default=0.01,
            domain=Constraint(kind=float),
            about="start of the learned scales of the dynamic parts (s_a, s_b)",
        ),
        "collapse": COLLAPSE,
    }

    def __init__(
        self, width: int, site: Site, *, streams: int, dynamic: bool, scale: float, collapse: str
    ) -> None:
        super().__init__(width, site, streams=streams, collapse=collapse)
        self.dynamic = dynamic and site.role != "stack"
        if site.role == "stack":
            return
        self.static = nn.Parameter(torch.zeros(streams, streams + 2))
        starts(self, static=_Plain(sublayer(site) % streams))
        if dynamic:
            self.norm = LayerNorm(width, site)
            self.weight = linear(width, streams + 2, start=zeros)
            self.scale = nn.Parameter(torch.zeros(2))
            starts(self, scale=Constant(scale))

    def coefficients(self, streams: Streams) -> tuple[Streams, StreamRows, StreamWeights]:
        streams, weights = self._weights(streams)
        weights = weights.transpose(-1, -2).contiguous()
        rows, written = weights.split([self.streams + 1, 1], dim=-2)
        return streams, rows, written.squeeze(-2)

    def _weights(self, streams: Tensor) -> tuple[Tensor, Tensor]:
        """Return the streams, and one row for each: its A_m, its row of A_r, its B."""
        if not self.dynamic:
            return streams, self.static.expand(*streams.shape[:2], -1, -1)
        streams, product = self._product(streams)
        alpha, beta = self.scale[:1].expand(self.streams + 1), self.scale[1:]
        return streams, torch.addcmul(self.static, torch.cat([alpha, beta]), torch.tanh(product))

    def _product(self, streams: Tensor) -> tuple[Tensor, Tensor]:
        """Return the streams, and N(H) W."""
        norm, weight = self.norm, self.weight
        if bare(weight, nn.Linear) and bare(norm, LayerNorm):
            given = streams, norm.weight, norm.bias, weight.weight, norm.epsilon
            if torch.compiler.is_compiling():
                return streams, _product_first(*given)
            if worthwhile(streams):
                product, through, *_ = NormedRows.apply(*given)
                return through, product
        return streams, weight(norm(streams))

    @classmethod
    def cost(cls, width: int, site: Site, **options: Any) -> Cost:
        streams = options["streams"]
        if site.role == "stack":
            return Cost()
        cost = cls.mixing_cost(width, site, streams) + Cost(scalars=streams * (streams + 2))
        if not options["dynamic"]:
            return cost
        matrix = linear_cost(width, streams + 2)
        return (
            cost
            + replace(matrix, flops=streams * matrix.flops)
            + Cost(scalars=2 * width + 2, pointwise=6 * streams * width)
        )


@dataclass(frozen=True)
class _Plain:
    """Read one stream, mix none, write into all."""

    read: int

    def __call__(self, shape: torch.Size, draw: Draw) -> Tensor:
        eye = torch.eye(shape[0])
        reading = eye[:, self.read : self.read + 1]
        return torch.cat([reading, eye, torch.ones_like(reading)], dim=1)


VARIANTS = (
    Variant(
        name="hyper-connections",
        spec=Spec().with_block(residual=Choice("hyper-connections")),
        equation="h = A_m^T H; H <- A_r^T H + B^T F(RMS(h)); A = E + s tanh(LN(H) W)",
        source="zhu24, equations 2 to 5 and 10 to 14",
        about="n residual streams that learned weights, partly of the token, read, mix and write.",
        cost="Few operations, but n streams are n times the memory traffic of one, forward and "
        "backward: eager, on one CPU thread at width 256, a step takes about a fifth longer.",
        start="identity",
    ),
)
PARTS = (HyperConnections,)
