"""Rotary positions."""

from typing import Any

import torch
from torch import Tensor

from layerlab.blocks.operations.derivative import is_unwatched


def rotate(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Turn each pair of features by an angle that grows with the position.

    x cos + half_turn(x) sin, where half_turn moves the second half of the features, negated, before
    the first.

    Source: su21, section 3.4; pairs are (i, i + head_width / 2), as in transformers' Llama.
    """
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    if torch.is_grad_enabled() and is_unwatched():
        return _Turn.apply(query, cos, sin), _Turn.apply(key, cos, sin)
    return query * cos + _half_turn(query) * sin, key * cos + _half_turn(key) * sin


def _half_turn(features: Tensor) -> Tensor:
    half = features.shape[-1] // 2
    return torch.cat((-features[..., half:], features[..., :half]), dim=-1)


class _Turn(torch.autograd.Function):
    """The same bits half by half, without a turned copy; its derivative is the turn back."""

    @staticmethod
    def forward(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        y = x * cos
        y[..., :half].sub_(x[..., half:] * sin[..., :half])
        y[..., half:].add_(x[..., :half] * sin[..., half:])
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        x, cos, sin = inputs
        ctx.dtype = x.dtype
        ctx.save_for_backward(cos, sin)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        back = -sin.roll(sin.shape[-1] // 2, -1)  # the halves of each pair change places
        return _Turn.apply(gradient, cos, back).to(ctx.dtype), None, None
