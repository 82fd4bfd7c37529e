"""Canon layers: a short causal convolution beside what a sublayer reads and what it projects."""

from typing import Any

import torch
from torch import Tensor

from layerlab.blocks.attention import BIAS, GATHERED, Attention
from layerlab.blocks.context import Flow
from layerlab.blocks.cost import Cost
from layerlab.blocks.ffn import Gated
from layerlab.blocks.init import Draw, zeros
from layerlab.blocks.operations.causal_taps import tap
from layerlab.blocks.operations.convolution import CausalConvolution, convolution_cost
from layerlab.blocks.part import Option
from layerlab.blocks.shape import Site
from layerlab.blocks.spec import BlockSpec, Choice, Spec, Variant
from layerlab.shapes import Heads, KeyHeads, Stream
from layerlab.validation import Constraint

EVERYWHERE = "abcd"
SUBSETS = tuple(
    "".join(letter for bit, letter in enumerate(EVERYWHERE) if chosen >> bit & 1)
    for chosen in range(1, 1 << len(EVERYWHERE))
)
OPTIONS = {
    "places": Option(
        default=EVERYWHERE,
        domain=Constraint(kind=str, choices=SUBSETS),
        about="a before attention, b on queries, keys and values, c before feed-forward, d inside",
        shared=True,
    ),
    "kernel": Option(
        default=4,
        domain=Constraint(kind=int, least=1, most=64),
        about="tokens that it sees",
        shared=True,
    ),
    "start": Option(
        default="uniform",
        domain=Constraint(kind=str, choices=("uniform", "identity")),
        about="uniform as the published code, or at zero, so that the model starts as its baseline",
        shared=True,
    ),
}


class Canon(CausalConvolution):
    """h + conv(h), of one h or of several as if they stood side by side.

    Source: allen25, Canon layers.
    """

    added = True

    def forward(self, x: Tensor | tuple[Tensor, ...], flow: Flow) -> Any:
        if not isinstance(x, tuple):
            return super().forward(x, flow)
        sizes = [one.shape[-1] for one in x]
        if flow.cache is not None:  # it keeps them as one
            return super().forward(torch.cat(x, dim=-1), flow).split(sizes, dim=-1)
        return tuple(
            tap(one, weight, flow.ages, added=self.added, place=self.state)
            for one, weight in zip(x, self.weight.split(sizes), strict=True)
        )


class CanonAttention(Attention):
    """Attention on x + conv(x) (place a), with (q, k, v) + conv(q, k, v) (place b).

    Source: allen25, Canon-A to Canon-D.
    """

    name = "canon"
    options = {"bias": BIAS, **OPTIONS}
    # The convolution of place b has all channels, so they are gathered on every device.
    plan = GATHERED

    def __init__(
        self,
        width: int,
        site: Site,
        *,
        bias: str = "none",
        places: str = EVERYWHERE,
        kernel: int = 4,
        start: str = "uniform",
    ) -> None:
        super().__init__(width, site, bias=bias)
        sizes = {"a": width, "b": _project(site)}
        self.canon_a, self.canon_b = (
            _convolution(sizes[letter], kernel, start) if letter in places else None
            for letter in "ab"
        )

    def heads(self, x: Stream, flow: Flow) -> tuple[Heads, KeyHeads, KeyHeads]:
        if self.canon_a is not None:
            x = self.canon_a(x, flow)
        query, key, value = self.query(x), self.key(x), self.value(x)
        if self.canon_b is not None:
            query, key, value = self.canon_b((query, key, value), flow)
        return self.split(query), self.split(key), self.split(value)

    @classmethod
    def cost(cls, width: int, site: Site, **options: Any) -> Cost:
        plain = super().cost(width, site, bias=options.get("bias", "none"))
        return plain + _cost({"a": width, "b": _project(site)}, options)


class CanonFeedForward(Gated):
    """A gated feed-forward on x + conv(x) (place c), with (gate, up) + conv(gate, up) (place d).

    Source: allen25, Canon-A to Canon-D.
    """

    name = "canon"
    options = {**Gated.options, **OPTIONS}
    plan = {
        "gate": "colwise_gather_output",
        "up": "colwise_gather_output",
        "down": "rowwise_split_input",
    }

    def __init__(
        self,
        width: int,
        site: Site,
        *,
        activation: str = "silu",
        bias: bool = False,
        places: str = EVERYWHERE,
        kernel: int = 4,
        start: str = "uniform",
    ) -> None:
        super().__init__(width, site, activation=activation, bias=bias)
        sizes = {"c": width, "d": 2 * site.shape.inner}
        self.canon_c, self.canon_d = (
            _convolution(sizes[letter], kernel, start) if letter in places else None
            for letter in "cd"
        )

    def forward(self, x: Stream, flow: Flow) -> Stream:
        if self.canon_c is not None:
            x = self.canon_c(x, flow)
        gate, up = self.gate(x), self.up(x)
        if self.canon_d is not None:
            gate, up = self.canon_d((gate, up), flow)
        out: Stream = self.down(self.activation(gate) * up)
        return out

    @classmethod
    def cost(cls, width: int, site: Site, **options: Any) -> Cost:
        plain = super().cost(width, site, bias=options.get("bias", False))
        return plain + _cost({"c": width, "d": 2 * site.shape.inner}, options)


def uniform(shape: torch.Size, draw: Draw) -> Tensor:
    """Draw uniformly between -1/sqrt(kernel) and 1/sqrt(kernel).

    Source: allen25, published code (PyTorch's own start of a depthwise convolution).
    """
    bound = shape[-1] ** -0.5
    return (2 * torch.rand(shape, generator=draw.generator) - 1) * bound


def _convolution(channels: int, kernel: int, start: str) -> Canon:
    return Canon(channels, kernel, zeros if start == "identity" else uniform)


def _project(site: Site) -> int:
    """Return the number of features of queries, keys and values together."""
    return (site.shape.heads + 2 * site.shape.kv_heads) * site.shape.head_width


def _cost(sizes: dict[str, int], options: dict[str, Any]) -> Cost:
    places, kernel = options.get("places", EVERYWHERE), options.get("kernel", 4)
    there = [size for letter, size in sizes.items() if letter in places]
    beside = Cost(pointwise=sum(there))
    return sum((convolution_cost(size, kernel) for size in there), beside)


PARTS = (CanonAttention, CanonFeedForward)

VARIANTS = (
    Variant(
        name="canon",
        spec=Spec(block=BlockSpec(attention=Choice("canon"), ffn=Choice("canon"))),
        equation="h <- h + conv(h), kernel 4, causal, per channel; h at a: what attention reads, "
        "b: q, k, v, c: what feed-forward reads, d: gate and up",
        source="allen25, Canon-A to Canon-D",
        about="Lets neighbouring tokens mix before attention and inside the feed-forward; a remedy "
        "for the lack of horizontal flow in one layer.",
        cost="Four weights per channel, no matrix product; while generating, the last three tokens "
        "of each place are kept beside keys and values. Each weight is a pass over the features: "
        "eager, on one CPU thread at width 256, a step takes about 15 % longer.",
    ),
)
