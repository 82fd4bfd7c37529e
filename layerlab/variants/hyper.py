"""Hyper-connections: n residual streams, read, mixed and written with learned weights."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from layerlab.blocks.cost import Cost, linear_cost
from layerlab.blocks.norm import LayerNorm
from layerlab.blocks.part import Option
from layerlab.blocks.shape import Site
from layerlab.blocks.spec import Choice, Spec, Variant
from layerlab.blocks.start import Constant, Draw, linear, starts, zeros
from layerlab.blocks.stream import COLLAPSE, STREAMS, ParallelStreams, sublayer
from layerlab.domain import Domain
from layerlab.shapes import StreamRows, Streams, StreamWeights


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
            default=True, domain=Domain(kind=bool), about="whether the weights depend on the token"
        ),
        "scale": Option(
            default=0.01,
            domain=Domain(kind=float),
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

    def coefficients(self, streams: Streams) -> tuple[StreamRows, StreamWeights]:
        weights = self._weights(streams).transpose(-1, -2).contiguous()
        rows, written = weights.split([self.streams + 1, 1], dim=-2)
        return rows, written.squeeze(-2)

    def _weights(self, streams: Tensor) -> Tensor:
        """One row per stream: its A_m, its row of A_r, its B."""
        if not self.dynamic:
            return self.static.expand(*streams.shape[:2], -1, -1)
        alpha, beta = self.scale[:1].expand(self.streams + 1), self.scale[1:]
        shift = torch.tanh(self.weight(self.norm(streams)))
        return self.static + torch.cat([alpha, beta]) * shift

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
        "backward: eager, on one CPU thread at width 256, a step takes about a third longer.",
        start="identity",
    ),
)
PARTS = (HyperConnections,)
