"""WideNet: all layers share one attention and one mixture of experts; norms stay their own."""

from typing import Any

import torch
from torch import Tensor

from layerlab.blocks.activation import NAMED, activation_unit
from layerlab.blocks.context import Flow
from layerlab.blocks.cost import Cost, linear_cost
from layerlab.blocks.init import linear, residual
from layerlab.blocks.part import Option, Part
from layerlab.blocks.shape import Site
from layerlab.blocks.spec import Choice, Spec, Variant
from layerlab.errors import UserError
from layerlab.shapes import Features, Matrices, Stream
from layerlab.validation import Constraint
from layerlab.variants.feedforward.weighed_experts import weigh_gated

COUNT = Constraint(kind=int, least=1, most=256)


class Experts(Part):
    """Sum over the k largest p_e of p_e Expert_e(x), where p = softmax(x W_router).

    An expert is a feed-forward of its own, gated as in SwiGLU or plain. The p_e are not made to sum
    to 1 again after the choice, so that the router learns with k = 1 too.

    Every expert is computed for every token, and those that were not chosen are multiplied by zero:
    one wide feed-forward, whose shapes do not depend on the data. No token is ever dropped, however
    many go to one expert.

    Source: xue21, section on the mixture of experts.

    Differs: there is no noise on the router, no capacity of an expert and no balance loss.
    """

    name = "experts"
    slot = "ffn"
    options = {
        "experts": Option(default=4, domain=COUNT, about="how many experts there are", unsaid=True),
        "k": Option(default=2, domain=COUNT, about="how many of them serve a token", unsaid=True),
        "inner": Option(
            default=None,
            domain=Constraint(kind=int | None, least=1),
            about="features inside one expert; None: those of the model's feed-forward",
            unsaid=True,
        ),
        "gated": Option(
            default=True,
            domain=Constraint(kind=bool),
            about="whether an expert has a gate, as SwiGLU has",
            unsaid=True,
        ),
        "activation": Option(default="silu", domain=NAMED, about="function inside an expert"),
    }

    def __init__(
        self,
        width: int,
        site: Site,
        *,
        experts: int = 4,
        k: int = 2,
        inner: int | None = None,
        gated: bool = True,
        activation: str = "silu",
    ) -> None:
        super().__init__()
        _check(experts, k)
        self.experts, self.k = experts, k
        wide = experts * (inner or site.shape.inner)
        self.router = linear(width, experts)
        self.gate = linear(width, wide) if gated else None
        self.up = linear(width, wide)
        self.down = linear(wide, width, start=residual)
        self.activation = activation_unit(activation, wide)

    def forward(self, x: Stream, flow: Flow) -> Stream:
        gate = None if self.gate is None else self._apart(self.gate(x))
        up = self._apart(self.up(x))
        share = self.shares(x).unsqueeze(-1).to(up.dtype)  # that of autocast, where it is on
        if gate is None:
            product = self.activation(up) * share
        else:
            product = weigh_gated(gate, up, share, self.activation)
        out: Stream = self.down(product.flatten(-2))
        return out

    def _apart(self, x: Features) -> Matrices:
        """Return the features of each expert on their own."""
        return x.unflatten(-1, (self.experts, -1))

    def shares(self, x: Stream) -> Tensor:
        """Return by how much each expert counts for each token: zero where it was not chosen."""
        scores = self.router(x)
        exact = torch.promote_types(scores.dtype, torch.float32)
        likely = torch.softmax(scores, dim=-1, dtype=exact)
        best = likely.topk(self.k, dim=-1)
        kept = torch.zeros_like(likely).scatter(-1, best.indices, best.values)
        return kept.to(x.dtype)

    @classmethod
    def cost(cls, width: int, site: Site, **options: Any) -> Cost:
        experts = options.get("experts", 4)
        _check(experts, options.get("k", 2))
        wide = experts * (options.get("inner") or site.shape.inner)
        into = linear_cost(width, wide)
        gate = into if options.get("gated", True) else Cost()
        own = Cost(pointwise=6 * wide + 5 * experts)
        return linear_cost(width, experts) + gate + into + linear_cost(wide, width) + own


def _check(experts: int, k: int) -> None:
    if k > experts:
        raise UserError(
            f"{k} experts cannot serve a token where there are {experts}; "
            f"type k={experts} or less, or experts={k}"
        )


PARTS = (Experts,)

VARIANTS = (
    Variant(
        name="widenet",
        spec=Spec().with_block(ffn=Choice("experts")).with_stack(sharing="blocks"),
        equation="x <- x + A(RMS_l(x)); x <- x + sum over top k of p_e Expert_e(RMS'_l(x)), "
        "with the same A, Expert_e and p in every layer l",
        source="xue21, the whole paper; as a control: pangu23, Table 4",
        about="One block shared by all layers, wide by a mixture of experts; norms are each "
        "layer's own. The control against which PanGu-π's ways to more nonlinearity were measured.",
        unsaid="How pangu23 set it up: experts, k, their width and their form are ours. xue21's "
        "router noise and balance loss are left out, so nothing keeps the router from preferring "
        "few experts; since no expert has a capacity, that costs neither tokens nor time. "
        "xue21's norms are layer norms of encoders; ours are those of Llama.",
        cost="All experts are computed for every token, not k of them: matrix products cost "
        "experts/k times what the chosen ones need. PyTorch's grouped product, which would do only "
        "those, takes no float64, does not compile in float32 and is not counted by "
        "FlopCounterMode. Parameters of attention and experts count once for all layers. "
        "Low-rank adapters are each layer's own: since the matrices below them are shared, they "
        "stay beside the model and cannot be merged into it. FSDP shards the model as a "
        "whole: fully_shard of one layer at a time is refused by torch, since all hold one matrix.",
    ),
)
