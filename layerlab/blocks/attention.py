"""Causal softmax attention over heads."""

from typing import Any

from torch import Tensor

from layerlab.blocks.context import Flow
from layerlab.blocks.cost import Cost, linear_cost
from layerlab.blocks.init import linear, residual
from layerlab.blocks.part import Option, Part
from layerlab.blocks.shape import Site
from layerlab.errors import UserError
from layerlab.shapes import Heads, Joined, KeyHeads, Stream
from layerlab.validation import Constraint

BIAS = Option(
    default="none",
    domain=Constraint(kind=str, choices=("none", "qkv", "all")),
    about="which projections have a bias",
)
# The plan of tensor parallelism of an attention that needs all heads on every device.
GATHERED = {
    "query": "colwise_gather_output",
    "key": "colwise_gather_output",
    "value": "colwise_gather_output",
    "output": "rowwise_split_input",
}


class Attention(Part):
    """softmax(Q K^T / sqrt(head_width) + mask) V W_o with Q = x W_q, K = x W_k, V = x W_v.

    A variant overrides `heads` (what becomes query, key and value) or `joined` (what becomes of the
    heads' outputs); everything else is the same line for all of them.

    Source: vaswani17, equation 1; shared key-value heads: ainslie23.
    """

    name = "softmax"
    slot = "attention"
    options = {"bias": BIAS}
    plan = {"query": "colwise", "key": "colwise", "value": "colwise", "output": "rowwise"}

    def __init__(self, width: int, site: Site, *, bias: str = "none") -> None:
        super().__init__()
        shape = site.shape
        assert site.attend is not None, "a model gives its attention function"
        self.head_dim = shape.head_width  # this and the next four are read by attention functions
        self.num_key_value_groups = shape.heads // shape.kv_heads
        self.scaling = shape.head_width**-0.5 * site.score_factor
        self.is_causal = True
        self.layer_idx = site.layer
        self.dropout = 0.0
        self.attend = site.attend
        self.key_heads = shape.kv_heads
        queries, keys = shape.heads * shape.head_width, shape.kv_heads * shape.head_width
        self.query = linear(width, queries, bias=bias != "none")
        self.key = linear(width, keys, bias=bias != "none")
        self.value = linear(width, keys, bias=bias != "none")
        self.output = linear(queries, width, bias=bias == "all", start=residual)

    def forward(self, x: Stream, flow: Flow) -> tuple[Stream, Tensor | None]:
        query, key, value = self.heads(x, flow)
        query, key = flow.placed(query, key)
        if flow.cache is not None:
            # A paged cache writes into them what its attention is to read.
            key, value = flow.cache.update(key, value, flow.layer, kwargs=flow.extra)
        attended, weights = self.attend(
            self,
            query,
            key,
            value,
            flow.mask,
            scaling=self.scaling,
            dropout=self.dropout if self.training else 0.0,
            implementation=flow.implementation,
            **flow.extra,
        )
        return self.joined(attended.reshape(*x.shape[:-1], -1).contiguous(), x, flow), weights

    def heads(self, x: Stream, flow: Flow) -> tuple[Heads, KeyHeads, KeyHeads]:
        """Return the queries, keys and values."""
        return (self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x)))

    def joined(self, attended: Joined, x: Stream, flow: Flow) -> Stream:
        """Return the sublayer's output from all heads side by side; `x` is what attention read."""
        out: Stream = self.output(attended)
        return out

    def split(self, features: Tensor) -> Tensor:
        """Split the features into heads: batch x head x token x head_width.

        Raises:
            UserError: a process has a part of a head, as more processes than heads would.
        """
        if features.shape[-1] % self.head_dim:
            raise UserError(
                f"tensor parallelism gives a process {features.shape[-1]} features of heads that "
                f"are {self.head_dim} wide; start a number of processes that divides "
                f"its heads of keys, {self.key_heads}, so that each has whole ones"
            )
        return features.view(*features.shape[:-1], -1, self.head_dim).transpose(1, 2)

    @classmethod
    def cost(cls, width: int, site: Site, **options: Any) -> Cost:
        shape, bias = site.shape, options.get("bias", "none")
        queries, keys = shape.heads * shape.head_width, shape.kv_heads * shape.head_width
        return (
            linear_cost(width, queries, bias=bias != "none")
            + linear_cost(width, keys, bias=bias != "none")
            + linear_cost(width, keys, bias=bias != "none")
            + linear_cost(queries, width, bias=bias == "all")
            + Cost(flops=4 * shape.context * queries, pointwise=5 * shape.heads * shape.context)
        )


PARTS = (Attention,)
