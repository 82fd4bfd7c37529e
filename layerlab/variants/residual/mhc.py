"""Manifold-constrained hyper-connections: streams are mixed by doubly stochastic matrices."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from layerlab.blocks.context import Flow
from layerlab.blocks.cost import Cost, linear_cost
from layerlab.blocks.init import Constant, Draw, starts, zeros
from layerlab.blocks.operations.derivative import again, is_unwatched, redone
from layerlab.blocks.operations.sinkhorn import doubly_stochastic
from layerlab.blocks.operations.stream import STREAMS, ParallelStreams, exact, sublayer
from layerlab.blocks.operations.stream_mixing import plus
from layerlab.blocks.part import Option
from layerlab.blocks.shape import Site
from layerlab.blocks.spec import Choice, Spec, Variant
from layerlab.shapes import Stream, StreamRows, Streams, StreamWeights
from layerlab.validation import Constraint

NORM_EPSILON = 1e-6


class NormedProduct(torch.autograd.Function):
    """W x / sqrt(mean(x^2) + epsilon), without keeping the normed x; and x, for what reads it next.

    Its gradient is written out because n streams are much to pass over: autograd's own takes five
    passes where this takes two, in which it adds the gradient of the x that it hands on.

    Source: xie25, section 4.3.1, which also norms after the product.
    """

    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scale = _inverse(x)
        return functional.linear(x, weight) * scale, x.view_as(x), scale

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        product, _, scale = output
        ctx.mark_non_differentiable(scale)
        ctx.save_for_backward(*inputs, product, scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, through: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        x, weight, product, scale = ctx.saved_tensors
        if redone(gradient, through):
            return again(_normed_product, (x, weight), (gradient, through))
        rows = gradient * scale
        shrink = (gradient * product).sum(-1, keepdim=True) * scale.square() / -x.shape[-1]
        moved = rows.flatten(0, -2).t() @ x.flatten(0, -2)
        return plus(through, x, shrink, rows, weight), moved


def normed_product(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return w x / sqrt(mean(x^2) + epsilon), and x.

    Source: xie25, section 4.3.1, which also norms after the product.
    """
    if is_unwatched():
        product, through, _ = NormedProduct.apply(x, weight)
        return product, through
    return _normed_product(x, weight)


def _normed_product(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return functional.linear(x, weight) * _inverse(x), x


def _inverse(x: Tensor) -> Tensor:
    root = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.rsqrt(root.square() / x.shape[-1] + NORM_EPSILON)


class ManifoldConnections(ParallelStreams):
    """h = sigmoid(p) H; H' = C^T H + 2 sigmoid(w)^T F(h), C doubly stochastic from exp(c).

    (p, w, c) = s RMS(vec(H)) W + b.

    Source: xie25, equations 7 to 9.
    Differs: a guard is added to every sum that divides, to C before the first and to sigmoid(p),
    as DeepSeek-V4 does with 1e-6; at the default it vanishes unless a sum does.
    """

    name = "mhc"
    options = {
        "streams": Option(
            default=STREAMS.default, domain=Constraint(kind=int, least=2), about=STREAMS.about
        ),
        "iterations": Option(
            default=20,
            domain=Constraint(kind=int, least=1),
            about="divisions of rows and of columns",
        ),
        "guard": Option(
            default=1e-18,
            domain=Constraint(kind=float, least=0, most=1e-3),
            about="keeps sums from being zero; DeepSeek-V4 has 1e-6",
        ),
        "scale": Option(
            default=0.01, domain=Constraint(kind=float), about="start of the learned scales s"
        ),
        "diagonal": Option(
            default=4.0,
            domain=Constraint(kind=float, least=-20, most=20),
            about="start of the diagonal of c: how much a stream keeps to itself",
            unsaid=True,
        ),
        "collapse": Option(
            default="mean",
            domain=Constraint(kind=str, choices=("mean", "sum", "head")),
            about="how the streams become one: head weighs them by the token, as DeepSeek-V4 does",
            unsaid=True,
        ),
    }

    def __init__(
        self,
        width: int,
        site: Site,
        *,
        streams: int,
        iterations: int,
        guard: float,
        scale: float,
        diagonal: float,
        collapse: str,
    ) -> None:
        super().__init__(width, site, streams=streams, collapse=collapse)
        self.iterations, self.guard = iterations, guard
        stack = site.role == "stack"
        if stack and collapse != "head":
            return
        kinds, outputs = (1, streams) if stack else (3, streams * (streams + 2))
        self.weight = nn.Parameter(torch.zeros(outputs, streams * width))
        self.static = nn.Parameter(torch.zeros(outputs))
        self.scale = nn.Parameter(torch.zeros(kinds))
        read, mixed = (0, None) if stack else (sublayer(site) % streams, diagonal)
        plain = _PlainMixing(read=read, streams=streams, guard=guard, diagonal=mixed)
        starts(self, weight=zeros, static=plain, scale=Constant(scale))

    def coefficients(self, streams: Streams) -> tuple[Streams, StreamRows, StreamWeights]:
        n = self.streams
        scale = torch.cat([self.scale[:2].repeat_interleave(n), self.scale[2:].expand(n * n)])
        logits, streams = self._logits(streams, scale)
        read, written, mixed = logits.split([n, n, n * n], dim=-1)
        read = torch.sigmoid(read) + self.guard
        written = 2 * torch.sigmoid(written)
        mixing = doubly_stochastic(mixed.unflatten(-1, (n, n)), self.iterations, self.guard)
        rows = torch.cat([read.unsqueeze(-2), mixing.transpose(-1, -2)], dim=-2)
        return streams, rows.to(streams.dtype), written.to(streams.dtype)

    def close(self, x: Stream, flow: Flow) -> Stream:
        if self.collapse != "head":
            return x
        streams = self.kept(flow)
        with exact(streams):
            logits, streams = self._logits(streams, self.scale)
            read = torch.sigmoid(logits) + self.guard
            return (read.unsqueeze(-2).to(streams.dtype) @ streams).squeeze(-2)

    def _logits(self, streams: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits in float32 at least.

        The norm is one number a token and comes after the product.
        """
        flat = streams.flatten(-2)
        flat = flat.to(torch.promote_types(flat.dtype, torch.float32))
        product, flat = normed_product(flat, self.weight.to(flat.dtype))
        logits = torch.addcmul(self.static.to(flat.dtype), product, scale.to(flat.dtype))
        return logits, flat.view(streams.shape).to(streams.dtype)

    @classmethod
    def cost(cls, width: int, site: Site, **options: Any) -> Cost:
        n, stack = options["streams"], site.role == "stack"
        if stack and options["collapse"] != "head":
            return Cost()
        kinds, outputs = (1, n) if stack else (3, n * (n + 2))
        cost = linear_cost(n * width, outputs) + Cost(
            scalars=outputs + kinds, pointwise=2 * n * width
        )
        return cost + (Cost(flops=2 * n * width) if stack else cls.mixing_cost(width, site, n))


@dataclass(frozen=True, kw_only=True)
class _PlainMixing:
    """Read one stream more than the others; write 1 into all, mix little.

    What is read has to be the plain stream exactly, but the share of a stored float32 is not exact.
    So the largest share is what the others leave of 1: near a half, its logit is as fine as that.
    """

    read: int
    streams: int
    guard: float
    diagonal: float | None

    def __call__(self, shape: torch.Size, draw: Draw) -> Tensor:
        n = self.streams
        largest = 1 / 2 if n > 2 else 3 / 4
        reading = torch.full((n,), math.log((1 - largest) / (n - 2 + largest)))
        others = torch.sigmoid(reading.double())[1:].sum() + n * self.guard
        reading[self.read] = torch.logit(1 - others)
        if self.diagonal is None:
            return reading
        mixing = self.diagonal * torch.eye(n).flatten()
        return torch.cat([reading, torch.zeros_like(reading), mixing])


VARIANTS = (
    Variant(
        name="mhc",
        spec=Spec().with_block(residual=Choice("mhc")),
        equation="h = sigmoid(p) H; H <- C^T H + 2 sigmoid(w)^T F(RMS(h)); C doubly stochastic",
        source="xie25, equations 7 to 9",
        about="Hyper-connections whose mixing neither amplifies nor loses what the streams carry.",
        cost="The memory traffic of n streams, a product over all of them for the weights, and 40 "
        "small sums for each mixing matrix (one kernel on a GPU with Triton): eager, on one CPU "
        "thread at width 256, a step takes about a fifth longer; the source fuses all of it into "
        "kernels.",
        unsaid="The start of the static parts: each sublayer reads one stream more than the rest.",
        start="identity",
    ),
)
PARTS = (ManifoldConnections,)
