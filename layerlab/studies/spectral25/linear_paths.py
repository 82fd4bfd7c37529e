"""A stack as a linear map of its embedding, and what its paths of each length carry.

Its attention weights, norms and gates are held at what they are on a passage.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from layerlab.errors import NotApplicable

if TYPE_CHECKING:
    from layerlab.numerics.theory.modules import TheoryAttention, TheoryFFN, TheoryNorm

LinearMap = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One layer x + attention(norm x), then y + feedforward(norm y) if it has one; no biases."""

    norm: "TheoryNorm"
    attention: "TheoryAttention"
    second: "TheoryNorm | None" = None
    feedforward: "TheoryFFN | None" = None


def hold_attention(piece: Piece, x: Tensor) -> LinearMap:
    """Return attention as a linear map on any features, its weights and norm held as at x."""
    read = piece.norm.value(x)
    scale = _hold(piece.norm, x)
    matrices = [piece.attention.weights(read, head) for head in range(piece.attention.heads)]
    joined = piece.attention.joined_output()
    assert joined is not None

    def apply(y: Tensor) -> Tensor:
        z = y * scale
        heads = enumerate(matrices)
        return torch.cat([m @ piece.attention.values(z, head) for head, m in heads], -1) @ joined.mT

    return apply


def hold_feedforward(piece: Piece, x: Tensor) -> LinearMap:
    """Return the feed-forward as a linear map on any features, its gate and norm held as at x."""
    parts, norm = piece.feedforward, piece.second
    if parts is None or norm is None:
        return torch.zeros_like
    read, scale = norm.value(x), _hold(norm, x)
    inward = functional.linear(read, parts.inward)
    # A gate multiplies what comes in; without one the activation does, as f(u) / u.
    gate = torch.where(inward == 0, 0.0, parts.hidden_units(read) / inward)

    def apply(y: Tensor) -> Tensor:
        return functional.linear(gate * functional.linear(y * scale, parts.inward), parts.outward)

    return apply


def _hold(norm: "TheoryNorm", x: Tensor) -> Tensor:
    """Return the factor by which an RMS norm multiplies the features of each token."""
    if norm.kind != "rms" or norm.shift is not None:
        raise NotApplicable("a layer norm that is held is no linear map, nor is one with a shift")
    gain = torch.ones(x.shape[-1]).to(x) if norm.gain is None else norm.gain
    return gain / norm.radius(x)


def paths(start: Tensor, pieces: Sequence[Piece]) -> Tensor:
    """Return what the paths of each length carry to the output, length x token x width.

    They sum to the output.

    Y_k <- Y_k + F(Y_(k-1)) in every layer, F its attention; a feed-forward acts on each alike.

    Source: dong21, section 3.
    """
    parts = start[None]
    for piece in pieces:
        attend = hold_attention(piece, parts.sum(0))
        none = torch.zeros_like(parts[:1])
        parts = torch.cat([parts, none]) + torch.cat([none, attend(parts)])
        parts = parts + hold_feedforward(piece, parts.sum(0))(parts)
    return parts
