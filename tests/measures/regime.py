"""Attention layers as they occur, and the SVD that says what their norms are."""

import math

import torch
from torch import Tensor

from layerlab.measures.support.lanczos import CentredRitz, Perron, settle
from layerlab.measures.support.products import dense
from layerlab.observe.tracing.attention.record import AttentionRecord

KINDS = ("init", "peaky", "sink", "local")


def record(
    kind: str, tokens: int, heads: int = 3, width: int = 32, **options: object
) -> AttentionRecord:
    """Nearly uniform rows, rows with few large logits, a first token that all see, neighbours."""
    draw = torch.Generator().manual_seed(tokens)
    query, key = (torch.randn(heads, tokens, width, generator=draw) for _ in range(2))
    if kind == "init":
        query, key = query * 0.3, key * 0.3
    elif kind == "peaky":
        query, key = query * 1.7, key * 1.7
    elif kind == "sink":
        towards = torch.nn.functional.normalize(torch.randn(width, generator=draw), dim=0)
        query = query + towards * math.sqrt(width)
        key[:, 0] += 6 * towards
    else:
        walk = torch.nn.functional.normalize(query.cumsum(1) * 0.35, dim=-1)
        query = key = walk * 6
    values: dict[str, object] = {"layer": 0, "name": kind, "scaling": width**-0.5}
    return AttentionRecord(**{**values, "query": query, ("key"): key, **options})  # type: ignore[arg-type]


def attention(attended: AttentionRecord) -> Tensor:
    """The matrix in float64, written out without the code under test."""
    assert attended.query is not None and attended.key is not None
    repeats = attended.query.shape[0] // attended.key.shape[0]
    key = attended.key.double().repeat_interleave(repeats, 0)
    scores = attended.query.double() @ key.mT * attended.scaling
    if attended.softcap is not None:
        scores = attended.softcap * torch.tanh(scores / attended.softcap)
    if attended.bias is not None:
        scores = scores + attended.bias.double()
    square = torch.ones(scores.shape[-2:], dtype=torch.bool)
    if attended.causal:
        scores = scores.masked_fill(~square.tril(), -torch.inf)
    if attended.window is not None:
        scores = scores.masked_fill(square.tril(-attended.window), -torch.inf)
    if attended.sinks is not None:
        sinks = attended.sinks.double()[:, None, None].expand(-1, scores.shape[1], 1)
        return torch.softmax(torch.cat([scores, sinks], -1), -1)[..., :-1]
    return torch.softmax(scores, -1)


def svd_norm(matrix: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(matrix.double(), 2)


def svd_contraction(matrix: Tensor) -> Tensor:
    return svd_norm(matrix.double() - matrix.double().mean(-2, keepdim=True))


def enclosed(matrix: Tensor, stochastic: bool = True) -> tuple[Perron, CentredRitz]:
    """Both processes, run on a matrix that is given as it is."""
    given = dense(matrix)
    known = given.profile()
    perron, ritz = Perron(known, stochastic), CentredRitz(known, stochastic)
    settle(given, known, (perron, ritz))
    return perron, ritz
