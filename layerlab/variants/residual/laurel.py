"""Learned augmented residual layers: weights, a low-rank term and earlier activations."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from layerlab.blocks.context import Flow
from layerlab.blocks.cost import Cost, linear_cost
from layerlab.blocks.init import Constant, linear, normal, ones, starts, zeros
from layerlab.blocks.norm import RmsNorm
from layerlab.blocks.operations.chunking import large
from layerlab.blocks.operations.derivative import bare
from layerlab.blocks.operations.stream import sublayer
from layerlab.blocks.part import Option
from layerlab.blocks.residual import Residual
from layerlab.blocks.shape import Site
from layerlab.blocks.spec import Choice, Spec, Variant
from layerlab.shapes import Stream
from layerlab.validation import Constraint
from layerlab.variants.residual.augmented import join

FORMS = ("rw", "lr", "pa", "rw+lr", "rw+pa", "lr+pa", "rw+lr+pa")


class Laurel(Residual):
    """a F(x) + b (x + h(x + sum_j g_j x_j)), with h(x) = U V x of low rank.

    rw learns a and b, which are 1 without it; lr lets h see x; pa lets h see the inputs x_j of the
    last sublayers. U starts at zero, so that the start is the plain residual.

    Source: menghani24, section 2.
    Differs: pa looks back a fixed number of sublayers, so that memory does not grow with depth;
    where lr and pa meet they share h.
    """

    name = "laurel"
    options = {
        "forms": Option(
            default="rw+lr",
            domain=Constraint(kind=str, choices=FORMS),
            about="residual weights (rw), low rank (lr), previous activations (pa)",
        ),
        "rank": Option(
            default=4, domain=Constraint(kind=int, least=1), about="rank of h", unsaid=True
        ),
        "previous": Option(
            default=3,
            domain=Constraint(kind=int, least=1),
            about="how many sublayers pa looks back",
            unsaid=True,
        ),
        "weights": Option(
            default="free",
            domain=Constraint(kind=str, choices=("free", "softmax")),
            about="rw as two free numbers from 1, or as a softmax of two, which starts at a half",
        ),
        "normed": Option(
            default=False,
            domain=Constraint(kind=bool),
            about="h(x) passes an RMS norm, as in Gemma 3n; its gain starts at zero in place of U",
        ),
    }
    remembers = ("before",)

    def __init__(self, width: int, site: Site, **options: Any) -> None:
        super().__init__(width, site)
        self.forms = options["forms"].split("+")
        self.softmax = options["weights"] == "softmax"
        self.reach = options["previous"] if "pa" in self.forms else 0
        if site.role == "stack":
            return
        if "rw" in self.forms:
            self.weight = nn.Parameter(torch.ones(2))
            starts(self, weight=zeros if self.softmax else ones)
        earlier = min(self.reach, sublayer(site))
        if earlier:
            self.earlier = nn.Parameter(torch.ones(earlier))
            starts(self, earlier=Constant(1 / earlier))
        self.low = "lr" in self.forms or earlier > 0
        if self.low:
            normed = options["normed"]
            self.left = linear(width, options["rank"])
            self.right = linear(options["rank"], width, start=normal if normed else zeros)
            self.norm = RmsNorm(width, site) if normed else nn.Identity()
            if normed:
                starts(self.norm, weight=zeros)

    def write(self, x: Stream, y: Stream, flow: Flow) -> Stream:
        low = self._sum_seen(x, flow) if self.low else None
        self._remember(x, flow)
        if "rw" not in self.forms:
            return self._augment(x, low) + y
        weight = self.weight.softmax(0) if self.softmax else self.weight
        if low is not None and large(x) and self._bare():
            return join(x, y, weight, low, self.right.weight)
        return join(self._augment(x, low), y, weight)

    def _bare(self) -> bool:
        return bare(self.right, nn.Linear) and bare(self.norm, nn.Identity)

    def _augment(self, x: Tensor, low: Tensor | None) -> Tensor:
        """Return the stream x + h(x)."""
        return x if low is None else x + self.norm(self.right(low))

    def _sum_seen(self, x: Tensor, flow: Flow) -> Tensor:
        """Sum what V gives of each that h sees: V comes first, since its results are small."""
        seen = [self.left(x)] if "lr" in self.forms else []
        for back in range(self.reach):
            earlier = flow.kept("residual", f"before{back}")
            if earlier is not None:
                seen.append(self.earlier[back] * self.left(earlier))
        found: Tensor = sum(seen[1:], start=seen[0])
        return found

    def _remember(self, x: Tensor, flow: Flow) -> None:
        for back in range(self.reach):
            later = flow.kept("residual", f"before{back}")
            flow.keep("residual", f"before{back}", x)
            if later is None:
                return
            x = later

    @classmethod
    def cost(cls, width: int, site: Site, **options: Any) -> Cost:
        if site.role == "stack":
            return Cost()
        forms, reach = options["forms"].split("+"), options["previous"]
        carried = "pa" in forms and site.role == "attention"
        kept = min(reach, sublayer(site) + site.sublayers) if carried else 0
        cost = Cost(pointwise=width, carry=kept * width)
        if "rw" in forms:
            cost += Cost(scalars=2, pointwise=2 * width)
        earlier = min(reach, sublayer(site)) if "pa" in forms else 0
        cost += Cost(scalars=earlier)
        seen = earlier + ("lr" in forms)
        if seen:
            matrix = linear_cost(width, options["rank"])
            cost += matrix + replace(matrix, flops=seen * matrix.flops) + Cost(pointwise=width)
            if options["normed"]:
                cost += Cost(scalars=width, pointwise=4 * width)
        return cost


def _variant(
    name: str, forms: str, equation: str, about: str, unsaid: str = "", cost: str = ""
) -> Variant:
    return Variant(
        name=name,
        spec=Spec().with_block(residual=Choice("laurel", forms=forms)),
        equation=equation,
        source="menghani24, section 2",
        about=about,
        unsaid=unsaid,
        cost=cost,
        start="identity",
    )


VARIANTS = (
    _variant(
        "laurel",
        "rw+lr",
        "x <- a F(RMS(x)) + b (x + U V x)",
        "Residual weights and a low-rank term together, as the source trains language models.",
        cost="The gradient of each residual weight sums over the whole stream: eager, on one CPU "
        "thread at width 256, a step takes about 3 % longer.",
    ),
    _variant(
        "laurel-rw",
        "rw",
        "x <- a F(RMS(x)) + b x",
        "Learned weights of the sublayer and of the residual: two numbers a sublayer.",
    ),
    _variant(
        "laurel-lr",
        "lr",
        "x <- F(RMS(x)) + x + U V x",
        "A low-rank linear term beside the residual.",
    ),
    _variant(
        "laurel-pa",
        "pa",
        "x_i+1 = F(RMS(x_i)) + x_i + U V sum_j g_j x_j",
        "A low-rank term of what earlier sublayers read.",
        "How the weights g start; here evenly, summing to 1.",
    ),
)
PARTS = (Laurel,)
