"""Shortcuts beside the plain one: the augmented shortcut, and the scaled identity."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from layerlab.blocks.activation import NAMED, Activation, activate
from layerlab.blocks.context import Flow
from layerlab.blocks.cost import Cost, linear_cost
from layerlab.blocks.init import Axes, Start, axes, linear, normal, residual, starts, zeros
from layerlab.blocks.part import Option, Part
from layerlab.blocks.shape import Site
from layerlab.errors import UserError
from layerlab.shapes import Stream
from layerlab.validation import Constraint

THROUGH_ZERO = ("silu", "gelu", "gelu-tanh", "tanh", "none")
"""Zero at zero, with a slope there: a matrix before them may start at zero and still learns."""

ALSO_FFN = Option(
    default=False, domain=Constraint(kind=bool), about="stands beside the feed-forward, too"
)


def bottleneck(width: int, r: int | float) -> int:
    """Return the width of the narrow layer: width / r, or width r for a fraction r; at least 1.

    Source: pangu23, section 4.1.

    Example:
        >>> bottleneck(4096, 32), bottleneck(4096, 1 / 32), bottleneck(48, 64)
        (128, 128, 1)
    """
    return max(1, round(width / r if r >= 1 else width * r))


def circulant_block(width: int, block: int | None) -> int:
    """Return the side of a circulant block, by default at most a quarter of the width.

    Source: tang21, block-circulant projection.

    Raises:
        UserError: a block that does not divide the width.
    """
    if block is None:
        return max(side for side in range(1, max(2, width // 4 + 1)) if width % side == 0)
    if width % block:
        raise UserError(
            f"blocks of {block} do not tile a width of {width}; expected a divisor of {width}: "
            f"type block={circulant_block(width, None)}"
        )
    return block


class Bottleneck(nn.Module):
    """activation(x W_down) W_up.

    Source: pangu23, section 4.1.
    """

    def __init__(self, width: int, narrow: int, name: str, bias: bool, start: Start) -> None:
        super().__init__()
        self.down = linear(width, narrow, bias=bias)
        self.up = linear(narrow, width, bias=bias, start=start)
        self.activation = Activation(name)

    def forward(self, x: Stream) -> Stream:
        out: Stream = self.up(self.activation(self.down(x)))
        return out


class Full(nn.Module):
    """activation(x Theta).

    Source: pangu23, equation 5.
    """

    def __init__(self, width: int, name: str, bias: bool, start: Start) -> None:
        super().__init__()
        self.theta = linear(width, width, bias=bias, start=start)
        self.activation = Activation(name)

    def forward(self, x: Stream) -> Stream:
        out: Stream = self.activation(self.theta(x))
        return out


class Circulant(nn.Module):
    """activation(x Theta), where Theta consists of square blocks that are circulant.

    y_p = sum over q of IFFT(FFT(w_pq) FFT(x_q)): each block is a circular convolution.

    Source: tang21, block-circulant projection.
    Differs: by Fourier transforms; the published code multiplies by the whole matrix.
    """

    def __init__(self, width: int, block: int, name: str, bias: bool, start: Start) -> None:
        super().__init__()
        self.name = name
        self.weight = nn.Parameter(torch.zeros(width // block, width // block, block))
        self.shift = nn.Parameter(torch.zeros(width)) if bias else None
        starts(self, weight=start, shift=zeros)
        # Blocks out, blocks in, and places of a block, each of which both reads and writes.
        axes(self, weight=Axes(read=(1, 2), written=(0, 2)))

    def forward(self, x: Stream) -> Stream:
        out = self._turn(x.to(torch.promote_types(x.dtype, torch.float32))).to(x.dtype)
        return activate(out if self.shift is None else out + self.shift.to(x.dtype), self.name)

    def _turn(self, x: Tensor) -> Tensor:
        blocks, _, side = self.weight.shape
        split = x.reshape(-1, blocks, side)
        waves = torch.fft.rfft(split, dim=-1).permute(2, 0, 1)
        kernel = torch.fft.rfft(self.weight.to(x.dtype), dim=-1).permute(2, 1, 0)
        mixed = torch.bmm(waves, kernel).permute(1, 2, 0)
        return torch.fft.irfft(mixed, n=side, dim=-1).reshape(x.shape)


class Augmented(Part):
    """The sum over T paths: activation(u W_down) W_up, or activation(u Theta), beside attention.

    x <- x + Attention(u) + sum over i of path_i(u), with u as attention reads it.

    A rescale of c gives c x + Attention(u) + c sum over i of path_i(u).

    Source: pangu23, equations 4 and 5 and section 4.1; tang21, augmented shortcuts.
    Differs: a rescale leaves the attention's own factor to its output matrix.
    """

    name = "augmented"
    slot = "shortcut"
    options = {
        "r": Option(
            default=32,
            domain=Constraint(kind=float, above=0),
            about="the bottleneck is the width over r; a fraction multiplies it",
        ),
        "form": Option(
            default="bottleneck",
            domain=Constraint(kind=str, choices=("bottleneck", "full", "circulant")),
            about="two narrow matrices, one square matrix, or one of circulant blocks",
        ),
        "block": Option(
            default=None,
            domain=Constraint(kind=int | None, least=1),
            about="side of a circulant block; None: a quarter of the width, or the divisor below",
        ),
        "input": Option(
            default="normed",
            domain=Constraint(kind=str, choices=("normed", "raw")),
            about="reads what the sublayer reads, or the stream before its norm",
            unsaid=True,
        ),
        "T": Option(
            default=1, domain=Constraint(kind=int, least=1, most=16), about="paths", unsaid=True
        ),
        "bias": Option(
            default=False,
            domain=Constraint(kind=bool),
            about="whether the matrices have biases",
            unsaid=True,
        ),
        "activation": Option(default="gelu", domain=NAMED, about="function of a path"),
        "rescale": Option(
            default=1.0,
            domain=Constraint(kind=float, above=0),
            about="factor of the stream and the paths; 3/4 in tang21's code with two paths",
            unsaid=True,
        ),
        "also_ffn": ALSO_FFN,
        "initial": Option(
            default="zero",
            domain=Constraint(kind=str, choices=("zero", "normal")),
            about="how the last matrix of a path starts; zero: the block starts as without it",
            unsaid=True,
        ),
    }

    @classmethod
    def given(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        chosen = super().given(options)
        if chosen["form"] == "bottleneck" or chosen["initial"] == "normal":
            return chosen
        if chosen["T"] > 1:
            raise UserError(
                f"{chosen['T']} paths of form {chosen['form']!r} that start at zero would stay "
                "equal for ever; type initial=normal, or T=1"
            )
        if chosen["activation"] not in THROUGH_ZERO:
            raise UserError(
                f"activation {chosen['activation']!r} has no slope at zero, or is not zero there, "
                f"so form {chosen['form']!r} cannot start at zero; type initial=normal"
            )
        return chosen

    def __init__(self, width: int, site: Site, **options: Any) -> None:
        super().__init__()
        self.chosen = self.given(options)
        self.paths = nn.ModuleList(self._path(width) for _ in range(self.chosen["T"]))

    def _path(self, width: int) -> nn.Module:
        name, bias = self.chosen["activation"], self.chosen["bias"]
        zero = self.chosen["initial"] == "zero"
        match self.chosen["form"]:
            case "full":
                return Full(width, name, bias, zeros if zero else normal)
            case "circulant":
                block = circulant_block(width, self.chosen["block"])
                return Circulant(width, block, name, bias, zeros if zero else normal)
        narrow = bottleneck(width, self.chosen["r"])
        return Bottleneck(width, narrow, name, bias, zeros if zero else residual)

    def forward(self, entered: Stream, raw: Stream, flow: Flow) -> Stream:
        x = entered if self.chosen["input"] == "normed" else raw
        first, *further = self.paths
        y: Stream = first(x)
        for path in further:
            y = y + path(x)
        factor = self.chosen["rescale"]
        return y if factor == 1 else factor * y + (factor - 1) * raw

    @classmethod
    def present(cls, site: Site, **options: Any) -> bool:
        return site.role == "attention" or bool(options.get("also_ffn"))

    @classmethod
    def cost(cls, width: int, site: Site, **options: Any) -> Cost:
        chosen = cls.given(options)
        rescaled = Cost(pointwise=0 if chosen["rescale"] == 1 else 3 * width)
        return sum([_path_cost(width, chosen)] * chosen["T"], rescaled)


def _path_cost(width: int, chosen: Mapping[str, Any]) -> Cost:
    bias = chosen["bias"]
    match chosen["form"]:
        case "full":
            return linear_cost(width, width, bias=bias) + Cost(pointwise=5 * width)
        case "circulant":
            side = circulant_block(width, chosen["block"])
            blocks, waves = width // side, side // 2 + 1
            # A complex product is four real ones, and PyTorch counts it as one.
            product = 2 * waves * blocks * blocks
            transforms = 5 * width * max(1, (side - 1).bit_length())
            return Cost(
                weights=width * blocks,
                scalars=width if bias else 0,
                flops=product,
                pointwise=3 * product + transforms + 5 * width,
            )
    narrow = bottleneck(width, chosen["r"])
    two = linear_cost(width, narrow, bias=bias) + linear_cost(narrow, width, bias=bias)
    return two + Cost(pointwise=4 * narrow + width)


class ScaledIdentity(Part):
    """x <- Attention(u) + scale x, or x + Attention(u) + scale x Theta: a linear shortcut.

    The source names it as what prevents collapse and yet hurts: noise grows with the features.

    Source: pangu23, section 4.1.
    Differs: the source multiplies by a sum of matrices; a sum of matrices is one matrix, here the
        identity or Theta beside it.
    """

    name = "scaled-identity"
    slot = "shortcut"
    options = {
        "scale": Option(
            default=2.0,
            domain=Constraint(kind=float, above=0),
            about="weight of the shortcut",
            unsaid=True,
        ),
        "form": Option(
            default="identity",
            domain=Constraint(kind=str, choices=("identity", "linear")),
            about="the stream itself, or a square matrix of it beside the plain shortcut",
            unsaid=True,
        ),
        "also_ffn": ALSO_FFN,
    }

    def __init__(
        self,
        width: int,
        site: Site,
        *,
        scale: int | float = 2.0,
        form: str = "identity",
        also_ffn: bool = False,
    ) -> None:
        super().__init__()
        self.scale = scale
        self.theta = linear(width, width, start=zeros) if form == "linear" else None

    def forward(self, entered: Stream, raw: Stream, flow: Flow) -> Stream:
        out: Stream = (self.scale - 1) * raw if self.theta is None else self.scale * self.theta(raw)
        return out

    @classmethod
    def present(cls, site: Site, **options: Any) -> bool:
        return site.role == "attention" or bool(options.get("also_ffn"))

    @classmethod
    def cost(cls, width: int, site: Site, **options: Any) -> Cost:
        added = Cost(pointwise=2 * width)
        linear_form = options.get("form") == "linear"
        return added + linear_cost(width, width) if linear_form else added


PARTS = (Augmented, ScaledIdentity)
