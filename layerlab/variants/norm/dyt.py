"""No norm at all: a squashing function of every feature in its place (DyT, Derf)."""

import torch
from torch import nn

from layerlab.blocks.cost import Cost
from layerlab.blocks.init import Constant, ones, starts, zeros
from layerlab.blocks.part import Option, Part
from layerlab.blocks.shape import Site
from layerlab.blocks.spec import BlockSpec, Choice, Spec, StackSpec, Variant
from layerlab.shapes import Features
from layerlab.validation import Constraint

# Largest model width, and where alpha starts before attention and elsewhere.
ALPHA = ((1024, 1.0, 1.0), (2048, 1.0, 0.5), (4096, 0.8, 0.2), (5120, 0.6, 0.15))
WIDEST = (0.2, 0.05)
ERF_ALPHA = 0.5

FORM = Option(
    default="tanh",
    domain=Constraint(kind=str, choices=("tanh", "erf")),
    about="DyT's tanh(alpha x), or Derf's erf(alpha x + s)",
)
POSITIVE = Constraint(kind=float, least=0)


class Squash(Part):
    """DyT: gain tanh(alpha x) + bias; Derf: gain erf(alpha x + s) + bias; alpha and s are numbers.

    Near 0 it is linear, and large features are bounded by the gain, without any mean or variance.

    Source: zhu25, section 4 (tanh); chen25, equation 10 (erf).
    """

    name = "dyt"
    slot = "norm"
    options = {
        "form": FORM,
        "alpha_attention": Option(
            default=0.0,
            domain=POSITIVE,
            about="where alpha starts before attention; 0: by the width, as the source's models",
        ),
        "alpha_other": Option(
            default=0.0, domain=POSITIVE, about="the same before feed-forward and head"
        ),
        "bias": Option(default=True, domain=Constraint(kind=bool), about="whether a bias is added"),
    }

    def __init__(
        self,
        width: int,
        site: Site,
        *,
        form: str = "tanh",
        alpha_attention: float = 0.0,
        alpha_other: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        attention, other = first_alpha(width, form)
        chosen = (alpha_attention or attention, alpha_other or other)
        self.form = form
        self.alpha = nn.Parameter(torch.ones(1))
        self.weight = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(1)) if form == "erf" else None
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None
        alpha = Constant(chosen[0 if site.role == "attention" else 1])
        starts(self, alpha=alpha, weight=ones, shift=zeros, bias=zeros)

    def forward(self, x: Features) -> Features:
        y = self.alpha * x
        y = torch.tanh(y) if self.shift is None else torch.erf(y + self.shift)
        y = self.weight * y
        return y if self.bias is None else y + self.bias

    @classmethod
    def cost(cls, width: int, site: Site, **options: object) -> Cost:
        numbers = 2 if options.get("form") == "erf" else 1
        vectors = 2 if options.get("bias", True) else 1
        return Cost(scalars=vectors * width + numbers, pointwise=(2 + vectors) * width)


class EmbeddingScale(Part):
    """s x with one learned number s, sqrt(width) at the start: features of size 1 from small rows.

    Source: zhu25, appendix A.
    """

    name = "scale"
    slot = "norm"

    def __init__(self, width: int, site: Site) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        starts(self, scale=Constant(width**0.5))

    def forward(self, x: Features) -> Features:
        return self.scale * x

    @classmethod
    def cost(cls, width: int, site: Site, **options: object) -> Cost:
        return Cost(scalars=1, pointwise=width)


def first_alpha(width: int, form: str) -> tuple[float, float]:
    """Return the first alpha before attention, and elsewhere: smaller in wider models.

    Source: zhu25, section 7 (tanh), section 4 (0.5 for other models, here for erf).

    Differs: the source has values for widths of 1024, 2048, 4096, 5120 and 8192; a width between
    them gets those of the next larger one.
    """
    if form == "erf":
        return ERF_ALPHA, ERF_ALPHA
    found = ((attention, other) for most, attention, other in ALPHA if width <= most)
    return next(found, WIDEST)


PARTS = (Squash, EmbeddingScale)


def _free(form: str) -> Spec:
    norm = Choice("dyt", form=form)
    return Spec(
        block=BlockSpec(norm=norm), stack=StackSpec(embedding_norm=Choice("scale"), final_norm=norm)
    )


VARIANTS = (
    Variant(
        name="dyt",
        spec=_free("tanh"),
        equation="x <- x + F(gain tanh(alpha x) + bias); also before the head; "
        "the embedding times a learned number",
        source="zhu25, section 4",
        about="A Transformer without norms: nothing is summed over features, so no token waits for "
        "a reduction.",
        unsaid="Values of alpha between the widths that were tried.",
        cost="One number more per norm, and a bias.",
    ),
    Variant(
        name="derf",
        spec=_free("erf"),
        equation="x <- x + F(gain erf(alpha x + s) + bias); also before the head; "
        "the embedding times a learned number",
        source="chen25, equation 10",
        about="The successor of DyT: the error function with a learned shift, found by search.",
        unsaid="Where alpha starts in language models: 0.5, as DyT does elsewhere. Whether the "
        "learned factor of the embedding stays: it does here, as with DyT.",
        cost="Two numbers more per norm, and a bias.",
    ),
)
