"""The weights of which the theory speaks, and what they compute: norms, feed-forward, attention.

Weights are stored (out, in), heads first; tokens stand second to last, features last, any other
axes before them. Everything is computed in the format of the input: give float64.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from layerlab.numerics.theory.activations import activation
from layerlab.shapes import Features

Sequence = Float[Tensor, "*place token width"]
WidthVector = Float[Tensor, " width"]
Outputs = Float[Tensor, "*place out"]
OneHead = Float[Tensor, "*place token head_width"]
Mask = Bool[Tensor, "token token"]


@dataclass(frozen=True, kw_only=True, eq=False)
class TheoryNorm:
    """RMS norm x / sqrt(mean x^2 + eps), or layer norm of x - mean x; times gain, plus shift.

    A row that the norm divides by 0 gives 0.

    Attributes:
        extra: roundings beyond x * rsqrt(mean x^2 + eps) * gain: 1 where a square root and a
            quotient stand for rsqrt.
        offset: the gain is stored as its distance from 1, which costs one rounding (Gemma).
    """

    kind: Literal["rms", "layer"] = "rms"
    gain: WidthVector | None = None
    shift: WidthVector | None = None
    eps: float = 0.0
    extra: int = 0
    offset: bool = False

    def centre(self, x: Features) -> Features:
        return x - x.mean(-1, keepdim=True) if self.kind == "layer" else x

    def radius(self, x: Features) -> Float[Tensor, "*place 1"]:
        """Return sqrt(mean c^2 + eps) of centred features c, by their largest: no overflow."""
        size = x.abs().amax(-1, keepdim=True)
        unit = torch.where(size > 0, size, 1.0)
        return unit * ((x / unit).square().mean(-1, keepdim=True) + self.eps / unit**2).sqrt()

    def direction(self, x: Features) -> Features:
        """Return the direction before gain and shift."""
        centred = self.centre(x)
        radius = self.radius(centred)
        return torch.where(radius > 0, centred / torch.where(radius > 0, radius, 1.0), 0.0)

    def value(self, x: Features) -> Features:
        found = self.direction(x)
        found = found if self.gain is None else found * self.gain
        return found if self.shift is None else found + self.shift


@dataclass(frozen=True, kw_only=True, eq=False)
class TheoryFFN:
    """outward(activation(inward x)), or outward(activation(gate x) * inward x) with a gate."""

    inward: Float[Tensor, "inner width"]
    outward: Float[Tensor, "out inner"]
    activation: str
    gate: Float[Tensor, "inner width"] | None = None
    inward_bias: Float[Tensor, " inner"] | None = None
    outward_bias: Float[Tensor, " out"] | None = None
    gate_bias: Float[Tensor, " inner"] | None = None

    def hidden_units(self, x: Features) -> Float[Tensor, "*place inner"]:
        inner = functional.linear(x, self.inward, self.inward_bias)
        function = activation(self.activation)
        if self.gate is None:
            return function.value(inner)
        return function.value(functional.linear(x, self.gate, self.gate_bias)) * inner

    def value(self, x: Features) -> Float[Tensor, "*place out"]:
        return functional.linear(self.hidden_units(x), self.outward, self.outward_bias)


@dataclass(frozen=True, kw_only=True, eq=False)
class Head:
    """One head: its weights, biases or None, and what it does to scores."""

    query: Float[Tensor, "head_width width"]
    key: Float[Tensor, "head_width width"]
    value: Float[Tensor, "value_width width"]
    query_bias: Float[Tensor, " head_width"] | None
    key_bias: Float[Tensor, " head_width"] | None
    value_bias: Float[Tensor, " value_width"] | None


@dataclass(frozen=True, kw_only=True, eq=False)
class TheoryAttention:
    """Softmax attention with any number of heads; query head h uses key head h // group.

    Attributes:
        output: None leaves the heads side by side.
        scale: the factor on the scores.
        cosine, sine: of rotary positions, one row per token; x * cosine + turned(x) * sine with
            the halves of x swapped and one negated. None: no rotary positions.
        allowed: which key (column) each query (row) may see; None: itself and what precedes it.
        shifted: the softmax takes the largest score away first, as all real code does.
    """

    query: Float[Tensor, "head head_width width"]
    key: Float[Tensor, "kv_head head_width width"]
    value: Float[Tensor, "kv_head value_width width"]
    scale: float
    output: Float[Tensor, "head out value_width"] | None = None
    query_bias: Float[Tensor, "head head_width"] | None = None
    key_bias: Float[Tensor, "kv_head head_width"] | None = None
    value_bias: Float[Tensor, "kv_head value_width"] | None = None
    output_bias: Float[Tensor, " out"] | None = None
    cosine: Float[Tensor, "token head_width"] | None = None
    sine: Float[Tensor, "token head_width"] | None = None
    allowed: Mask | None = None
    shifted: bool = True

    @property
    def heads(self) -> int:
        return self.query.shape[0]

    def head(self, index: int) -> Head:
        shared = index // (self.heads // self.key.shape[0])
        return Head(
            query=self.query[index],
            key=self.key[shared],
            value=self.value[shared],
            query_bias=None if self.query_bias is None else self.query_bias[index],
            key_bias=None if self.key_bias is None else self.key_bias[shared],
            value_bias=None if self.value_bias is None else self.value_bias[shared],
        )

    def joined_output(self) -> Float[Tensor, "out joined"] | None:
        """Return the output projection as one matrix on the heads side by side."""
        return None if self.output is None else self.output.permute(1, 0, 2).flatten(1)

    def mask(self, x: Sequence) -> Mask:
        if self.allowed is not None:
            return self.allowed
        return torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool, device=x.device).tril()

    def rotate(self, x: OneHead) -> OneHead:
        if self.cosine is None or self.sine is None:
            return x
        return x * self.cosine + rotate_half(x) * self.sine

    def queries(self, x: Sequence, index: int) -> Tensor:
        head = self.head(index)
        return self.rotate(functional.linear(x, head.query, head.query_bias))

    def keys(self, x: Sequence, index: int) -> Tensor:
        head = self.head(index)
        return self.rotate(functional.linear(x, head.key, head.key_bias))

    def values(self, x: Sequence, index: int) -> Tensor:
        head = self.head(index)
        return functional.linear(x, head.value, head.value_bias)

    def scores(self, x: Sequence, index: int) -> Tensor:
        """Return the scores of every pair of tokens, those that the mask forbids among them."""
        return self.scale * (self.queries(x, index) @ self.keys(x, index).mT)

    def weights(self, x: Sequence, index: int) -> Tensor:
        hidden = self.scores(x, index).masked_fill(~self.mask(x), -torch.inf)
        return torch.softmax(hidden, -1)

    def value_of(self, x: Sequence) -> Tensor:
        every = [self.weights(x, index) @ self.values(x, index) for index in range(self.heads)]
        side = torch.cat(every, -1)
        joined = self.joined_output()
        return side if joined is None else functional.linear(side, joined, self.output_bias)


@dataclass(frozen=True, kw_only=True, eq=False)
class TheoryBlock:
    """A pre-norm block: x + attention(norm x), then y + feedforward(norm y)."""

    attention_norm: TheoryNorm
    attention: TheoryAttention
    feedforward_norm: TheoryNorm
    feedforward: TheoryFFN

    def value(self, x: Sequence) -> Sequence:
        middle = x + self.attention.value_of(self.attention_norm.value(x))
        return middle + self.feedforward.value(self.feedforward_norm.value(middle))


def rotate_half(x: Features) -> Features:
    """Return the halves of the features swapped, the second one negated.

    Source: su21, equation 34.
    """
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)
