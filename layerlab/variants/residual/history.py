"""The eight residual schemes: what each add of a layer joins to its sublayer's output.

Notation for layer m = 1 .. L: x_m is what enters the layer, x'_m the attention's output and y'_m
the feed-forward's, both before any norm. Scheme 0 is the plain block, which is `llama`. The sums
over earlier layers are running sums: one or two tensors of the stream's size, whatever the depth.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from layerlab.blocks.context import Flow
from layerlab.blocks.cost import Cost
from layerlab.blocks.part import Option
from layerlab.blocks.residual import Residual
from layerlab.blocks.shape import Role, Site
from layerlab.blocks.spec import Choice, Spec, Variant
from layerlab.shapes import Stream
from layerlab.validation import Constraint

# By scheme: whose outputs the add of each sublayer joins; where none is named, the add is plain.
SCHEMES: Mapping[int, Mapping[Role, Role]] = MappingProxyType(
    {
        0: {},
        1: {"attention": "attention"},
        2: {"attention": "attention"},
        3: {"ffn": "ffn"},
        4: {"ffn": "ffn"},
        5: {"attention": "attention", "ffn": "attention"},
        6: {"attention": "ffn", "ffn": "ffn"},
        7: {"attention": "attention", "ffn": "ffn"},
    }
)
DIVIDED = (2, 4)


class History(Residual):
    """F_m + (1 or 1 / (m - 1)) * sum over i < m of what the same or the other sublayer gave.

    The sums hold what the adds receive, in the precision of the stream: with placement "pre" and
    "post" that is the sublayer's output before any norm. With "both" and "after" it has passed the
    block's own norm of outputs, and a shortcut beside the sublayer counts into it.

    Source: residuals24, methods 0 to 7.
    Differs: the source says nothing of layer 1, where the sum is empty and m - 1 is zero; see the
        option first_layer.
    """

    name = "history"
    options = {
        "method": Option(
            default=1,
            domain=Constraint(kind=int, choices=tuple(SCHEMES)),
            about="the scheme; 0 is the plain residual",
        ),
        "first_layer": Option(
            default="own-input",
            domain=Constraint(kind=str, choices=("own-input", "zero")),
            about="layer 1, which has no earlier layers: it adds its own input as the plain block "
            "does (the embedding reaches the stream), or the empty sum, zero, divided by 1",
            unsaid=True,
        ),
        "divide": Option(
            default=False,
            domain=Constraint(kind=bool),
            about="divide the sums by m - 1, which methods 2 and 4 always do; the source left it "
            "out of 5 to 7 because it found 1 to 4 indifferent to it, which its figures are not",
            unsaid=True,
        ),
    }
    remembers = ("attention", "ffn", "before")

    def __init__(
        self,
        width: int,
        site: Site,
        *,
        method: int = 1,
        first_layer: str = "own-input",
        divide: bool = False,
    ) -> None:
        super().__init__(width, site)
        adds = SCHEMES[method]
        self.role = site.role
        self.source = adds.get(site.role)
        self.summed = site.role in adds.values()
        # The feed-forward's add is to miss the attention of its own layer, which was summed by now.
        self.crossed = self.source == "attention" and site.role == "ffn"
        crossing = site.role == "attention" and adds.get("ffn") == "attention"
        self.handed = crossing and site.sublayers > 1
        self.plain = self.source is None or (site.first and first_layer == "own-input")
        self.divisor = max(site.layer, 1) if divide or method in DIVIDED else 1

    def write(self, x: Stream, y: Stream, flow: Flow) -> Stream:
        past = self._past(flow)
        if self.summed:
            self._sum(y.to(x.dtype), flow)
        if self.plain:
            return x + y
        if past is None:
            return y.to(x.dtype)
        return y + (past if self.divisor == 1 else past / self.divisor)

    def _past(self, flow: Flow) -> Stream | None:
        """Return the sum over earlier layers that this write adds; None while it is empty."""
        if self.crossed:
            return flow.take("residual", "before")
        return None if self.source is None else flow.kept("residual", self.source)

    def _sum(self, y: Stream, flow: Flow) -> None:
        """Add this layer's output to the sum."""
        past = flow.kept("residual", self.role)
        if self.handed and past is not None:
            flow.keep("residual", "before", past)
        flow.keep("residual", self.role, y if past is None else past + y)

    @classmethod
    def cost(cls, width: int, site: Site, **options: Any) -> Cost:
        method = options.get("method", 1)
        adds = SCHEMES[method]
        if site.role == "stack":
            return Cost()
        summed = site.role in adds.values()
        divided = site.role in adds and (options.get("divide", False) or method in DIVIDED)
        return Cost(
            pointwise=width * (1 + summed + divided),
            carry=width if summed else 0,
        )


def _variant(method: int, attention: str, ffn: str, about: str) -> Variant:
    sums = len(set(SCHEMES[method].values()))
    return Variant(
        name=f"history-{method}",
        spec=Spec().with_block(residual=Choice("history", method=method)),
        equation=f"z_m = x'_m + {attention}; x_(m+1) = y'_m + {ffn}; x'_m = Attention(RMS(x_m)), "
        "y'_m = SwiGLU(RMS(z_m))",
        source=f"residuals24, method {method}",
        about=f"{about} Method 0 of the same source is `llama`.",
        unsaid="What layer 1 adds, where the sum is empty (and 1 / (m - 1) infinite): first_layer. "
        "Whether norms stand before the sublayers or after the adds, which `MLP input = result "
        "after norm` permits both: placement, `pre` by default, `post` the other reading. Its "
        "shape is inferred, and its batch sizes differ between methods.",
        cost=f"No parameters, no matrix products; {sums} running sum{'s' if sums > 1 else ''} of "
        f"the stream's size ({sums} x width numbers per token, whatever the depth), one more "
        "addition per token and layer for each.",
    )


VARIANTS = (
    _variant(
        1,
        "sum_(i<m) x'_i",
        "z_m",
        "The attention's add joins all earlier attention outputs in place of the layer's input, so "
        "that a feed-forward output lives for one layer only.",
    ),
    _variant(
        2,
        "sum_(i<m) x'_i / (m - 1)",
        "z_m",
        "Method 1 with the mean of the earlier attention outputs.",
    ),
    _variant(
        3,
        "x_m",
        "sum_(i<m) y'_i",
        "The feed-forward's add joins all earlier feed-forward outputs in place of the stream, so "
        "that an attention output lives inside its own layer only.",
    ),
    _variant(
        4,
        "x_m",
        "sum_(i<m) y'_i / (m - 1)",
        "Method 3 with the mean of the earlier feed-forward outputs.",
    ),
    _variant(
        5,
        "sum_(i<m) x'_i",
        "sum_(i<m) x'_i",
        "Both adds join the earlier attention outputs.",
    ),
    _variant(
        6,
        "sum_(i<m) y'_i",
        "sum_(i<m) y'_i",
        "Both adds join the earlier feed-forward outputs.",
    ),
    _variant(
        7,
        "sum_(i<m) x'_i",
        "sum_(i<m) y'_i",
        "Each add joins the earlier outputs of its own kind.",
    ),
)

PARTS = (History,)
