"""Rotary positions."""

import torch
from torch import Tensor


def rotate(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Turn each pair of features by an angle that grows with the position.

    x cos + half_turn(x) sin, where half_turn moves the second half of the features, negated, before
    the first.

    Source: su21, section 3.4; pairs are (i, i + head_width / 2), as in transformers' Llama.
    """
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return query * cos + _half_turn(query) * sin, key * cos + _half_turn(key) * sin


def _half_turn(features: Tensor) -> Tensor:
    half = features.shape[-1] // 2
    return torch.cat((-features[..., half:], features[..., :half]), dim=-1)
