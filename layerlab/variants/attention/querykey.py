"""Queries and keys are normed before their product, so that no score can grow without bound."""

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from layerlab.blocks.attention import BIAS, GATHERED, Attention
from layerlab.blocks.context import Flow
from layerlab.blocks.cost import Cost
from layerlab.blocks.init import Constant, starts
from layerlab.blocks.norm import EPSILON, RmsNorm
from layerlab.blocks.part import Option
from layerlab.blocks.shape import Site
from layerlab.blocks.spec import BlockSpec, Choice, Spec, Variant
from layerlab.shapes import Heads, KeyHeads, Stream
from layerlab.validation import Constraint

FORM = Option(
    default="head",
    domain=Constraint(kind=str, choices=("head", "full", "l2")),
    about="RMS norm of each head, RMS norm over all heads together, or each head's direction alone",
)


class NormedAttention(Attention):
    """softmax(N(Q) N(K)^T / sqrt(head_width) + mask) V W_o, normed before positions are added.

    N is a gained RMS norm of each head (form "head") or over all heads together ("full"). With
    "l2" it is x / |x| and the scores are g times the cosines, one learned g per layer, in place of
    1 / sqrt(head_width).

    Source: henry20, section 3 (l2); qwen25, section 2 (head); olmo24, norms (full).

    Differs: g starts at log2(L^2 - L) with L the context, where henry20 takes the 97.5th percentile
    of the training lengths.
    """

    name = "qk-norm"
    options = {
        "bias": BIAS,
        "form": FORM,
        "epsilon": Option(default=1e-6, domain=EPSILON, about="added to the mean square"),
    }
    # A norm over all heads needs all heads, so their features are gathered on every device.
    plan = GATHERED

    def __init__(
        self,
        width: int,
        site: Site,
        *,
        bias: str = "none",
        form: str = "head",
        epsilon: float = 1e-6,
    ) -> None:
        super().__init__(width, site, bias=bias)
        self.form, self.epsilon = form, epsilon
        if form == "l2":
            self.sharpness = nn.Parameter(torch.ones(1))  # not 0-dimensional: FSDP shards it
            starts(self, sharpness=Constant(first_sharpness(site.shape.context)))
            self.scaling = 1.0
            return
        queries, keys = _widths(site, form)
        self.query_norm = RmsNorm(queries, site, epsilon=epsilon)
        self.key_norm = RmsNorm(keys, site, epsilon=epsilon)

    def heads(self, x: Stream, flow: Flow) -> tuple[Heads, KeyHeads, KeyHeads]:
        query, key, value = self.query(x), self.key(x), self.split(self.value(x))
        if self.form == "full":
            return self.split(self.query_norm(query)), self.split(self.key_norm(key)), value
        query = query.unflatten(-1, (-1, self.head_dim))
        key = key.unflatten(-1, (-1, self.head_dim))
        if self.form == "l2":
            query = self.sharpness * functional.normalize(query, dim=-1, eps=self.epsilon)
            key = functional.normalize(key, dim=-1, eps=self.epsilon)
        else:
            query, key = self.query_norm(query), self.key_norm(key)
        return query.transpose(1, 2), key.transpose(1, 2), value

    @classmethod
    def cost(cls, width: int, site: Site, **options: Any) -> Cost:
        form = options.get("form", "head")
        shape = site.shape
        normed = (shape.heads + shape.kv_heads) * shape.head_width
        scalars = 1 if form == "l2" else sum(_widths(site, form))
        plain = super().cost(width, site, bias=options.get("bias", "none"))
        return plain + Cost(scalars=scalars, pointwise=4 * normed)


def first_sharpness(context: int) -> float:
    """Return log2(L^2 - L): a token can then give nearly all attention to one of L others.

    Source: henry20, section 3.
    """
    length = max(context, 2)
    return math.log2(length * length - length)


def _widths(site: Site, form: str) -> tuple[int, int]:
    """Return over how many features queries and keys are normed."""
    shape = site.shape
    if form == "head":
        return shape.head_width, shape.head_width
    return shape.heads * shape.head_width, shape.kv_heads * shape.head_width


PARTS = (NormedAttention,)

VARIANTS = (
    Variant(
        name="qk-norm",
        spec=Spec(block=BlockSpec(attention=Choice("qk-norm"))),
        equation="scores = N(Q) N(K)^T / sqrt(head_width), N an RMS norm of each head",
        source="henry20, section 3; dehghani23, section 2; qwen25, section 2",
        about="Bounds the attention logits whatever the weights do: a remedy for their growth at "
        "large learning rates. Form head is Qwen 3's, full is OLMo 2's, l2 the original one.",
        cost="Two gains of a head's width per layer; no matrix.",
    ),
)
