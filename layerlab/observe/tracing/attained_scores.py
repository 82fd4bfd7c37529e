"""The part of the query-key form that the tokens of a sequence attained."""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from layerlab.observe.architecture.head_weights import HeadWeights
from layerlab.observe.tracing.attention.record import AttentionRecord
from layerlab.observe.tracing.attention.tiles import blocks, cut, each_group, height
from layerlab.shapes import HeadVector, Hidden


def find_attained(
    weights: HeadWeights, attended: AttentionRecord, entered: Hidden
) -> Tensor | None:
    """Return the largest |q_i . k_j| / (|z_i| |z_j|) of each head, over all rows.

    Keys are those that a row may use. A token without features attains nothing. None where q and k
    are not the weights' alone: behind biases, norms, a clip, or in a score.
    """
    added = (weights.query_bias, weights.key_bias, weights.query_norm, weights.clip)
    if any(one is not None for one in added) or weights.refused.get("scores"):
        return None
    if weights.query is None or weights.key is None:
        return None
    sizes = entered.float().norm(dim=-1).to(attended.device)
    sizes = sizes.masked_fill(sizes == 0, torch.inf)[:, None]
    largest = each_group(attended, torch.float32, partial(_find_largest, sizes=sizes))
    return torch.cat(largest) / abs(weights.scaling)


def _find_largest(attended: AttentionRecord, sizes: Tensor) -> HeadVector:
    """Return the largest size of a score of each head, with a layer's input at norm 1."""
    shares = _share_sizes(attended, sizes)
    found = []
    for rows in blocks(attended.tokens, height(attended)):
        keys, part = cut(shares, rows)
        scores = part.logits()
        scores.masked_fill_(~attended.allowed_keys(rows=rows, keys=keys), 0.0)
        found.append(torch.stack(scores.flatten(1).aminmax(dim=1)).abs().amax(0))
    return torch.stack(found).amax(0)


def _share_sizes(attended: AttentionRecord, sizes: Tensor) -> AttentionRecord:
    """Return a record whose scores are those of a layer's input at norm 1."""
    if attended.scores is not None:
        return replace(attended, scores=attended.scores.float() / sizes / sizes.T)
    assert attended.query is not None and attended.key is not None
    return replace(attended, query=attended.query / sizes, key=attended.key / sizes)
