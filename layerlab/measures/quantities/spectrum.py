"""Norms of the matrix of an attention head, enclosed on both sides."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from layerlab.known_options import measure_options
from layerlab.measures.measure import Bound, Measure, MeasureContext, Row
from layerlab.measures.support.attention_pass import (
    End,
    HeadQuantity,
    heads_of,
    read_heads,
)
from layerlab.measures.support.lanczos import CentredRitz, Krylov, Perron, Process
from layerlab.measures.support.products import Profile
from layerlab.observe.tracing.attention.record import AttentionRecord
from layerlab.observe.tracing.attention.tiles import DENSE_TOKENS
from layerlab.observe.tracing.records import Layer
from layerlab.shapes import HeadVector


@dataclass(frozen=True, kw_only=True)
class Spectrum:
    """One reading per head; the columns of the measure say what each is."""

    norm: HeadVector
    lower: HeadVector
    upper: HeadVector
    column_bound: HeadVector
    column_lower: HeadVector
    row_lower: HeadVector
    row_sum_min: HeadVector
    contraction: HeadVector


_COLUMNS = tuple(one.name for one in fields(Spectrum))


def spectrum(
    attended: AttentionRecord, *, dtype: torch.dtype = torch.float32, dense: int = DENSE_TOKENS
) -> Spectrum:
    """Return the norms of every head's attention matrix A, from products with A alone.

    ||A||_2 = max ||A x|| / ||x||,   ||J A||_2   with   J = I - e e^T,   e = (1, ..., 1) / sqrt(n)

    ||A||_2 is 1 for a doubly stochastic A and sqrt(n) where every token attends to the same one;
    ||J A||_2 is 0 where all rows agree, and the factor by which diversity can at most grow.

    Products stop where `lower` and `upper`, which enclose the norm of the stored matrix, are 5e-4
    apart (`lanczos.GAP`). Where one part of a matrix leads, as in heads of models, the norm in
    float32 is that of exact scores to 1e-6 up to `dense` tokens: their softmax is taken in float64.
    Where parts hardly touch and have nearly equal norms, it may be short by as much as is left
    between the two: 3e-4 for two halves of 512 tokens whose scores for each other are -40. Above
    `dense`, a score of size s is rounded by u s, u = 2^-24, which moves its probability by the
    factor 1 +- u s, and the norm by at most 2 max |s_ij| u more (but for the sums behind a score):
    3e-5 at 266.

    Source: spectral25, section 2.1; pangu23, Lemma 1.
    Unit: none.

    Args:
        attended: one layer on one sequence.
        dtype: of the matrix and the products, and of streamed scores.
        dense: up to how many tokens a matrix is kept; above, each pass computes it again.
    """
    return Spectrum(**read_heads(attended, [replace(_SPECTRUM, dtype=dtype)], dense))


def _solve(part: AttentionRecord, profile: Profile) -> tuple[Sequence[Process], End]:
    perron, ritz = Perron(profile, part.sums_to_one), CentredRitz(profile, part.sums_to_one)

    def end() -> Mapping[str, HeadVector]:
        found = Spectrum(
            norm=perron.norm,
            lower=perron.lower,
            upper=perron.upper,
            column_bound=profile.column_sums.amax(-1).sqrt(),
            column_lower=profile.column_norms.amax(-1),
            row_lower=profile.row_norm,
            row_sum_min=profile.row_sum_min,
            contraction=ritz.norm,
        )
        return vars(found)

    return (perron, ritz), end


_SPECTRUM = HeadQuantity(columns=_COLUMNS, solve=_solve)


@lru_cache(maxsize=256)
def uniform_norm(tokens: int, keys: int, causal: bool = True) -> float:
    """Return the spectral norm of the attention that weighs every allowed key alike.

    C_ij = 1 / (keys that row i may use); with a causal rule and n keys the Cesaro matrix

    It grows with n from 1 towards 2 under a causal rule, and is sqrt(tokens / keys) without one.

    Source: Own.
    Unit: none.

    Example:
        >>> round(uniform_norm(5, 5), 3)
        1.309
    """
    if not causal:
        return (tokens / keys) ** 0.5
    counts = torch.arange(tokens, dtype=torch.float64) + (keys - tokens + 1)
    krylov = Krylov(torch.ones(1, keys, dtype=torch.float64))
    while True:
        image = krylov.vector.cumsum(-1)[:, keys - tokens :] / counts
        if krylov.settled:
            return float(image.norm())
        krylov.absorb(_back(image / counts, keys), image.square().sum(-1))
        krylov.judge(krylov.evidence())


def _back(image: Tensor, keys: int) -> Tensor:
    """Apply the transpose of a cumulative sum.

    Every key receives from its own row and all later ones.
    """
    later = image.flip(-1).cumsum(-1).flip(-1)
    return torch.cat([later[:, :1].expand(-1, keys - image.shape[1]), later], -1)


def _heads(options: Mapping[str, Any]) -> HeadQuantity:
    return replace(_SPECTRUM, dtype=getattr(torch, options["dtype"]))


def _read(layer: Layer, run: MeasureContext) -> Iterator[Row]:
    if layer.attention is None:
        return
    found = heads_of(layer, _heads(run.options))
    attended, columns = found.attended, found.columns
    uniform = uniform_norm(attended.tokens, attended.keys, attended.causal)
    for head in range(attended.heads):
        yield {
            "sequence": layer.sequence,
            "layer": attended.layer,
            "head": attended.first + head,
            **{name: columns[name][head] for name in _COLUMNS},
            "token_bound": attended.tokens**0.5,
            "uniform_ratio": columns["norm"][head] / uniform,
        }


MEASURES = (
    Measure(
        name="spectrum",
        title="Spectral norms of attention",
        unit="none",
        source="spectral25",
        about=(
            "The largest factor by which a head's attention matrix can stretch a signal across"
            " tokens. Under a causal mask it follows the text length and attention sinks: compare"
            " it with the uniform causal matrix of the same length, not with 1."
        ),
        equation="||A||_2 = max ||A x|| / ||x||;  contraction = ||(I - e e^T) A||_2",
        per=("sequence", "layer", "head"),
        columns={
            "norm": "spectral norm of the head's attention matrix",
            "lower": "what the norm is at least, rounding of the products included",
            "upper": "what the norm is at most (Collatz-Wielandt), rounding included",
            "column_bound": "sqrt of the largest column sum: an upper bound",
            "column_lower": "largest Euclidean norm of a column: a lower bound, high at a sink",
            "row_lower": "||A 1|| / ||1||: a lower bound, 1 where rows sum to 1",
            "row_sum_min": "smallest row sum; below 1 where a sink takes probability",
            "token_bound": "sqrt of the number of tokens: an upper bound",
            "uniform_ratio": "norm over that of the uniform (causal) matrix of this length",
            "contraction": "the factor by which attention can at most scale diversity",
        },
        plot=("norm", "uniform_ratio", "contraction"),
        better=None,
        needs=frozenset({"attention"}),
        resumes=True,
        read=_read,
        heads=_heads,
        bound=(
            Bound(column="norm", limit="upper", side="upper", source="wielandt50"),
            Bound(column="norm", limit="lower", side="lower", source="golub13"),
            Bound(column="norm", limit="column_bound", side="upper", source="spectral25"),
            Bound(column="column_bound", limit="token_bound", side="upper", source="spectral25"),
            Bound(column="norm", limit="column_lower", side="lower", source="Own"),
            Bound(column="norm", limit="row_lower", side="lower", source="spectral25"),
        ),
        **measure_options("spectrum"),
    ),
)
