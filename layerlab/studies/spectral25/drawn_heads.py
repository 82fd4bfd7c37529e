"""Heads that are drawn, random ones and ones aimed at their bound, and the attention they give."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from layerlab.studies.engine.sampling import Sampler

if TYPE_CHECKING:
    from layerlab.observe.architecture.head_weights import HeadWeights
    from layerlab.observe.tracing.attention.record import AttentionRecord

WIDTH = 64
HEAD = 8
TOKENS = 128


def random_heads(draw: Sampler, limit: float) -> "tuple[Tensor, HeadWeights]":
    """Return random features behind a layer norm, and heads with random weights."""
    stream = torch.nn.functional.layer_norm(draw.normal(TOKENS, WIDTH), (WIDTH,))
    return stream, scale_weights(draw.normal(HEAD, WIDTH), draw.normal(HEAD, WIDTH), limit)


def aimed_heads(draw: Sampler, limit: float) -> "tuple[Tensor, HeadWeights]":
    """Return heads that give the first token all the weight they can.

    z_i = sqrt(d / 2) (s_i a + b): queries read b, which all tokens have, and keys read a, which the
    first token has with another sign than the others. Both are orthogonal to 1, so a layer norm
    gives these features.
    """
    free = draw.normal(WIDTH, 2)
    basis = torch.linalg.qr(free - free.mean(1, keepdim=True)).Q
    sign = -torch.ones(TOKENS, dtype=torch.float64)
    sign[0] = 1
    key, query = basis[:, None, :, 0], basis[:, None, :, 1]
    stream = (WIDTH / 2) ** 0.5 * (sign[:, None] * key + query)
    rest = key.new_zeros(draw.count, HEAD - 1, WIDTH)
    return stream, scale_weights(torch.cat([query, rest], 1), torch.cat([key, rest], 1), limit)


def scale_weights(query: Tensor, key: Tensor, limit: float) -> "HeadWeights":
    """Scale the weights of heads behind a layer norm without gain and shift to the given M."""
    from layerlab.observe.architecture.head_weights import HeadWeights

    norms = torch.linalg.matrix_norm(query, 2) * torch.linalg.matrix_norm(key, 2)
    root = (limit * HEAD**0.5 / WIDTH / norms).sqrt()[:, None, None]
    return HeadWeights(
        layer=0,
        name="",
        scaling=HEAD**-0.5,
        query=query * root,
        key=key * root,
        gain=torch.ones(WIDTH, dtype=torch.float64),
        norm="layer",
    )


def attend(stream: Tensor, weights: "HeadWeights", *, causal: bool) -> "AttentionRecord":
    """Return the attention of one head per draw on its own features."""
    from layerlab.observe.tracing.attention.record import AttentionRecord

    assert weights.query is not None and weights.key is not None
    return AttentionRecord(
        layer=0,
        name="",
        scaling=weights.scaling,
        query=stream @ weights.query.mT,
        key=stream @ weights.key.mT,
        causal=causal,
    )
