"""Gated attention: a sigmoid gate on what the heads found, before they are joined."""

from typing import Any

import torch

from layerlab.blocks.attention import BIAS, Attention
from layerlab.blocks.context import Flow
from layerlab.blocks.cost import Cost, linear_cost
from layerlab.blocks.init import linear
from layerlab.blocks.part import Option
from layerlab.blocks.shape import Shape, Site
from layerlab.blocks.spec import BlockSpec, Choice, Spec, Variant
from layerlab.shapes import Joined, Stream
from layerlab.validation import Constraint

GRAIN = Option(
    default="element",
    domain=Constraint(kind=str, choices=("element", "head")),
    about="one gate per feature of a head, or one per head",
)


class GatedAttention(Attention):
    """(softmax(Q K^T / sqrt(head_width) + mask) V * sigmoid(x W_gate)) W_o; x is the normed input.

    Source: qiu25, section 2.2 (the gate at position G1).
    """

    name = "gated"
    options = {"bias": BIAS, "gate": GRAIN}
    plan = {**Attention.plan, "gate": "colwise"}

    def __init__(
        self, width: int, site: Site, *, bias: str = "none", gate: str = "element"
    ) -> None:
        super().__init__(width, site, bias=bias)
        self.grain = gate
        self.gate = linear(width, _gates(site.shape, gate), bias=bias != "none")

    def joined(self, attended: Joined, x: Stream, flow: Flow) -> Stream:
        gate = torch.sigmoid(self.gate(x))
        if self.grain == "head":
            gate = gate.repeat_interleave(self.head_dim, dim=-1)
        out: Stream = self.output(attended * gate)
        return out

    @classmethod
    def cost(cls, width: int, site: Site, **options: Any) -> Cost:
        bias = options.get("bias", "none")
        gates = _gates(site.shape, options.get("gate", "element"))
        work = Cost(pointwise=4 * gates + site.shape.heads * site.shape.head_width)
        return (
            super().cost(width, site, bias=bias)
            + linear_cost(width, gates, bias=bias != "none")
            + work
        )


def _gates(shape: Shape, grain: str) -> int:
    return shape.heads * (shape.head_width if grain == "element" else 1)


PARTS = (GatedAttention,)

VARIANTS = (
    Variant(
        name="gated-attention",
        spec=Spec(block=BlockSpec(attention=Choice("gated"))),
        equation="x <- x + (softmax(Q K^T / sqrt(head_width)) V * sigmoid(RMS(x) W_gate)) W_o",
        source="qiu25, section 2.2",
        about="A nonlinearity between the two linear maps of values and outputs, and a way for a "
        "head to say nothing without an attention sink. Qwen 3-Next has it.",
        unsaid="The start of the gate; as every other matrix here, so that all gates are near 1/2.",
        cost="One matrix of width x width more (gate=element), or width x heads (gate=head).",
    ),
)
