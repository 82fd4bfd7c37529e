"""Value residual: every layer's values take part of the first layer's."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from layerlab.blocks.attention import GATHERED, Attention
from layerlab.blocks.context import Flow
from layerlab.blocks.cost import Cost, linear_cost
from layerlab.blocks.init import Constant, starts
from layerlab.blocks.part import Option
from layerlab.blocks.shape import Site
from layerlab.blocks.spec import Choice, Spec, Variant
from layerlab.shapes import Heads, KeyHeads, Stream
from layerlab.validation import Constraint


class ValueResidual(Attention):
    """Attention with V_l <- 0.5 V_1 + 0.5 V_l from layer 2 on.

    form "identity": as above, nothing is learned. "learned": V_l <- a_l V_1 + b_l V_l with two
    numbers per layer that start at 0.5. "shared": V_l = V_1, and later layers have no value matrix
    (SVFormer). V_1 goes along in the carry, token by token; the cache keeps the mixed values.

    Source: zhou24, section 3 (ResFormer and SVFormer).
    Differs: with form "shared" the cache still holds the values once per layer, so the source's
        saving of nearly half the cache is not had.
    """

    name = "value-residual"
    options = {
        **Attention.options,
        "form": Option(
            default="identity",
            domain=Constraint(kind=str, choices=("identity", "learned", "shared")),
            about="how the first layer's values come in: halves, learned numbers, or alone",
        ),
    }
    remembers = ("value",)

    def __init__(
        self, width: int, site: Site, *, bias: str = "none", form: str = "identity"
    ) -> None:
        super().__init__(width, site, bias=bias)
        self.form = form
        if form == "shared" and not site.first:
            del self.value
        if form == "learned" and not site.first:
            self.mix = nn.Parameter(torch.full((2,), 0.5))
            starts(self, mix=Constant(0.5))

    def heads(self, x: Stream, flow: Flow) -> tuple[Heads, KeyHeads, KeyHeads]:
        return self.split(self.query(x)), self.split(self.key(x)), self._values(x, flow)

    def _values(self, x: Stream, flow: Flow) -> KeyHeads:
        first = flow.kept("attention", "value")
        if first is not None and self.form == "shared":
            return first
        own = self.split(self.value(x))
        if first is None:
            flow.keep("attention", "value", own)
            return own
        if self.form == "learned":
            mixed: KeyHeads = self.mix[0] * first + self.mix[1] * own
            return mixed
        return 0.5 * first + 0.5 * own

    @classmethod
    def sharding(cls, **options: Any) -> Mapping[str, str]:
        # The numbers of a layer learn from all of its heads.
        return GATHERED if options.get("form") == "learned" else cls.plan

    @classmethod
    def cost(cls, width: int, site: Site, **options: Any) -> Cost:
        form, bias = options.get("form", "identity"), options.get("bias", "none")
        keys = site.shape.kv_heads * site.shape.head_width
        plain = super().cost(width, site, bias=bias) + Cost(carry=keys)
        if site.first:
            return plain
        if form == "shared":
            saved = linear_cost(width, keys, bias=bias != "none")
            return plain + Cost(weights=-saved.weights, scalars=-saved.scalars, flops=-saved.flops)
        return plain + Cost(scalars=2 if form == "learned" else 0, pointwise=3 * keys)


VARIANTS = (
    Variant(
        name="value-residual",
        spec=Spec().with_block(attention=Choice("value-residual")),
        equation="V_l <- 0.5 V_1 + 0.5 V_l for l > 1; x <- x + softmax(Q K^T / sqrt(d_h)) V_l W_o; "
        "x <- x + SwiGLU(RMS(x))",
        source="zhou24, section 3",
        about="The first layer's values, close to the tokens, go into the attention of every later "
        "layer. form=learned learns both numbers for each layer; form=shared (SVFormer) keeps only "
        "the first layer's values.",
        unsaid="Whether learned numbers are constrained: here they are free, as two numbers per "
        "layer. What tensor is kept: here the heads of V_1, projected and with their bias.",
        cost="No matrix products more; V_1 is carried (the width of the key-value heads, per "
        "token) and three operations per value are added. form=shared saves the value matrices of "
        "all later layers; the cache stays as it is.",
    ),
)

PARTS = (ValueResidual,)
