"""Residual streams, several in parallel: what hyper-connections and their kin share."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from layerlab.blocks.context import Flow
from layerlab.blocks.cost import Cost
from layerlab.blocks.operations.stream_mixing import add, mix
from layerlab.blocks.part import Option
from layerlab.blocks.residual import Residual
from layerlab.blocks.shape import Site
from layerlab.blocks.spec import Spec
from layerlab.errors import UserError
from layerlab.shapes import Stream, StreamRows, Streams, StreamWeights
from layerlab.validation import Constraint

STREAMS = Option(
    default=4, domain=Constraint(kind=int, least=1), about="residual streams beside each other (n)"
)
COLLAPSE = Option(
    default="mean",
    domain=Constraint(kind=str, choices=("mean", "sum")),
    about="how the streams become the one that the final norm sees",
)


class ParallelStreams(Residual, ABC):
    """H' = M H + w F(r H), with n streams H, mixed by M, read with r and written with w.

    The streams travel in the carry. What is handed from layer to layer is their collapse, so that
    a reader of the model sees features of the width as usual. Streams keep their precision under
    autocast, as a plain residual stream does.

    Source: zhu24, equations 2 to 5.
    """

    name: ClassVar[str] = "parallel"
    remembers = ("streams",)

    def __init__(self, width: int, site: Site, *, streams: int, collapse: str) -> None:
        super().__init__(width, site)
        self.streams = streams
        self.collapse = collapse

    @classmethod
    def accept(cls, spec: Spec) -> None:
        if spec.block.placement == "post":
            raise UserError(
                f"residual {cls.name!r} keeps several streams, and a norm after the sum would see "
                "only their collapse; type placement=pre, after or both"
            )

    @abstractmethod
    def coefficients(self, streams: Streams) -> tuple[Streams, StreamRows, StreamWeights]:
        """Return the weights of `read` and `write`: n + 1 rows (r above M), and w.

        The streams come back, so that their gradient is added up where these are computed.
        """

    def open(self, x: Stream, flow: Flow) -> Stream:
        copies = x.unsqueeze(-2).expand(-1, -1, self.streams, -1)
        flow.keep("residual", "streams", copies.contiguous())
        return x

    def read(self, x: Stream, flow: Flow) -> Stream:
        streams = self.kept(flow)
        with exact(streams):
            streams, rows, written = self.coefficients(streams)
            entered, mixed = mix(streams, rows)
        flow.keep("residual", "streams", mixed)
        flow.keep("residual", "written", written)
        return entered

    def write(self, x: Stream, y: Stream, flow: Flow) -> Stream:
        mixed, written = self.kept(flow), flow.take("residual", "written")
        assert written is not None  # `read` came before
        with exact(mixed):
            streams, mean = add(mixed, written, y.to(mixed.dtype))
        flow.keep("residual", "streams", streams)
        return mean if self.collapse == "mean" else mean * self.streams

    @staticmethod
    def kept(flow: Flow) -> Tensor:
        """Return the streams as they stand."""
        streams = flow.kept("residual", "streams")
        assert streams is not None  # `open` came before
        return streams

    @staticmethod
    def mixing_cost(width: int, site: Site, streams: int) -> Cost:
        """Return the cost of reading, mixing and writing at one sublayer.

        The carry is counted once a layer.
        """
        carried = streams * width if site.role == "attention" else 0
        products = 2 * streams * (streams + 1) * width + 2 * streams * width
        return Cost(flops=products, pointwise=streams * width, carry=carried)


def sublayer(site: Site) -> int:
    """Return how many sublayers stand before this place."""
    before = site.shape.layers if site.role == "stack" else site.layer
    return site.sublayers * before + (site.role == "ffn")


def exact(x: Tensor) -> torch.autocast:
    """Switch autocast off, which keeps the precision of the streams."""
    kind = x.device.type
    return torch.autocast("cpu" if kind == "meta" else kind, enabled=False)  # meta has none
