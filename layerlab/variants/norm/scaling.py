"""LayerNorm Scaling: what deeper layers read is made smaller."""

from layerlab.blocks.cost import Cost
from layerlab.blocks.norm import RmsNorm
from layerlab.blocks.shape import Site
from layerlab.blocks.spec import BlockSpec, Choice, Spec, Variant
from layerlab.errors import UserError
from layerlab.shapes import Features


class ScaledRmsNorm(RmsNorm):
    """RMS(x) / sqrt(l) in layer l, which counts from 1; outside the layers RMS(x).

    Source: sun25, section 4.
    """

    name = "scaled-rms"

    def __init__(self, width: int, site: Site, *, epsilon: float = 1e-6) -> None:
        super().__init__(width, site, epsilon=epsilon)
        self.scale = max(site.layer + 1, 1) ** -0.5

    def forward(self, x: Features) -> Features:
        return super().forward(x) * self.scale

    @classmethod
    def accept(cls, spec: Spec) -> None:
        if spec.stack.initialisation == "depth-scaled":
            raise UserError(
                "norm 'scaled-rms' and initialisation 'depth-scaled' both make deep layers small, "
                "and its source says to leave the second out; type initialisation=plain"
            )

    @classmethod
    def cost(cls, width: int, site: Site, **options: object) -> Cost:
        return super().cost(width, site) + Cost(pointwise=width)


PARTS = (ScaledRmsNorm,)

VARIANTS = (
    Variant(
        name="layernorm-scaling",
        spec=Spec(block=BlockSpec(norm=Choice("scaled-rms"))),
        equation="x <- x + F(RMS(x) / sqrt(l)) in layer l, from 1",
        source="sun25, section 4",
        about="Keeps the variance of the stream from growing exponentially with depth, so that "
        "deep layers still change what they read. Not to be combined with depth-scaled "
        "initialisation.",
        unsaid="The final norm is not scaled, as in the published code.",
        cost="No parameter.",
    ),
)
