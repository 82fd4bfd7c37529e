"""Rounding-error bounds of attention: scores, softmax, heads, their projection.

As in `bounds.py`: absolute, for every entry, the input's own error carried through. One head at a
time holds a matrix of tokens by tokens.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from layerlab.numerics.theory.error_bounds import affine, sums_of_others
from layerlab.numerics.theory.modules import OneHead, Sequence, TheoryAttention
from layerlab.numerics.theory.roundoff_model import Arithmetic

Scores = Float[Tensor, "*place token key"]
AllowedKeys = Bool[Tensor, "token key"]

MOST = 300.0
"""An error of a score from which on a chance may be anything: exp of it still fits."""


def rotary(
    x: OneHead, parts: TheoryAttention, arithmetic: Arithmetic, error: OneHead | None = None
) -> OneHead:
    """Bound the error of x cos + turned(x) sin.

    2 u (|c x_a| + |s x_b|), 3 u with rounded tables.

    In length at most 3 sqrt(2) u ||x||. An error of the input is turned too: |R| error. A table
    itself is off by u + 3 u' |angle|, u' of the precision that forms position times frequency.

    Source: su21, equation 34; the bound Own.
    """
    if parts.cosine is None or parts.sine is None:
        return torch.zeros_like(x) if error is None else error
    cosine, sine = parts.cosine.abs(), parts.sine.abs()

    def reach(size: OneHead) -> OneHead:
        return size * cosine + torch.cat([*reversed(size.chunk(2, -1))], -1) * sine

    came = torch.zeros_like(x) if error is None else reach(error)
    size = reach(x.abs() if error is None else arithmetic.reach(x.abs(), error))
    return came + arithmetic.growth(rotary=2, constant=1) * size


def scores(
    x: Sequence,
    parts: TheoryAttention,
    arithmetic: Arithmetic,
    error: Sequence | None = None,
    index: int = 0,
) -> Float[Tensor, "*place token token"]:
    """Bound the error of the scores of one head.

    They are s (R q) . (R k), q = W_q x + b_q, k = W_k x + b_k.

    At most (2d + d_h + 1) u E, E = s (|W_k| |x_i|) . (|W_q| |x_t|): for d_h = d that is (3d + 1) u;
    2 u more with biases, 6 u with rotary positions from rounded tables (then |R| in E), u with a
    rounded factor s. Here the errors of q and k meet |k| and |q| themselves, which is no more.

    Source: budzinskiy25, Lemma 4.17; biases, rotary positions and mixed units Own.
    """
    head = parts.head(index)
    raw_query = functional.linear(x, head.query, head.query_bias)
    raw_key = functional.linear(x, head.key, head.key_bias)
    query_wrong = rotary(
        raw_query, parts, arithmetic, affine(x, head.query, arithmetic, head.query_bias, error)
    )
    key_wrong = rotary(
        raw_key, parts, arithmetic, affine(x, head.key, arithmetic, head.key_bias, error)
    )
    query, key = parts.rotate(raw_query).abs(), parts.rotate(raw_key).abs()
    scale = abs(parts.scale)
    largest = arithmetic.reach(query, query_wrong)
    came = query_wrong @ key.mT + largest @ key_wrong.mT
    size = largest @ arithmetic.reach(key, key_wrong).mT
    own = arithmetic.growth(product=1, sum=query.shape[-1] - 1, scale=1, constant=1, store=1)
    return scale * (came + own * size)


def softmax(
    s: Scores,
    arithmetic: Arithmetic,
    error: Scores | None = None,
    allowed: AllowedKeys | None = None,
    shifted: bool = True,
) -> Scores:
    """Bound the error of the softmax of each row of s, for every entry.

    p_j [(t + 2) u + (1 - 2 p_j) e_j + p . e],   e = error + (max s - s) u

    the last term only where the largest score is taken away first. Relative to p it is at most
    (t + 2 + 2 range) u + 2 max error. In full arithmetic the extremes of exp(e_j) / sum p exp(e)
    take the place of the first order, never more than exp(2 max e) - 1. t is the number of allowed
    entries of the row: exact zeros cost nothing.

    Source: budzinskiy25, Lemma 4.19 and Corollary 4.20; the full form Own.
    Differs: of the input's error the source has the first order only, no bound for large scores.
    """
    seen = torch.ones_like(s, dtype=torch.bool) if allowed is None else allowed.expand(s.shape)
    hidden = s.masked_fill(~seen, -torch.inf)
    chance = torch.softmax(hidden, -1)
    came = torch.zeros_like(s) if error is None else error.masked_fill(~seen, 0.0)
    if shifted:
        down = (hidden.amax(-1, keepdim=True) - s).masked_fill(~seen, 0.0)
        further = arithmetic.reach(down, came + came.amax(-1, keepdim=True))
        came = came + arithmetic.growth(softmax=1) * further
    own = arithmetic.growth(softmax=seen.sum(-1, keepdim=True).to(s) + 2, store=1)
    if arithmetic.first_order:
        moved = chance * ((1 - 2 * chance) * came + (chance * came).sum(-1, keepdim=True))
    else:
        moved = torch.maximum(_raise(chance, came), _lower(chance, came))
    moved = moved + own * arithmetic.reach(chance, moved)
    return moved.masked_fill(~seen, 0.0)


def _raise(chance: Scores, error: Scores) -> Scores:
    """Return the gain of p_j when its score rises by its error and all others fall by theirs.

    A chance too small for the format may not be so once it is raised: hence the floor.
    """
    fall, rest = -torch.expm1(-error), sums_of_others(chance)
    others = sums_of_others(chance * fall)
    gain = rest * fall + torch.exp(-error) * others
    floor = chance.clamp_min(torch.finfo(chance.dtype).tiny)
    return gain * floor / (floor + torch.exp(-error) * (rest - others).clamp_min(0))


def _lower(chance: Scores, error: Scores) -> Scores:
    """Return the loss of p_j when its score falls by its error and all others rise by theirs."""
    most, rest = error.clamp_max(MOST), sums_of_others(chance)
    others = sums_of_others(chance * torch.expm1(most))
    loss = others - rest * torch.expm1(-most)
    loss = loss / (chance * torch.exp(-most) + rest + others)
    return chance * torch.where(error.amax(-1, keepdim=True) < MOST, loss, 1.0)


def attention(
    x: Sequence,
    parts: TheoryAttention,
    arithmetic: Arithmetic,
    error: Sequence | None = None,
    scoring: Arithmetic | None = None,
) -> Float[Tensor, "*place token out"]:
    """Bound the error of attention with any number of heads, and of its output projection.

    Never above the uniform form, relative to the result,
    xi_A [2t + d + H d_h + 4 + 2 max (2d + d_h + 3) E + 2 range] u   (first order, biases counted)
    with the range of the scores of a row; without a projection H d_h + 1 of it falls away.

    Source: budzinskiy25, Lemma 4.21 and Corollary 4.23; heads, GQA, biases, rotary positions and
        mixed units Own.
    Differs: the source has one head and no output projection, and leaves out the range of the
        scores, which the shifted softmax of all real code costs.

    Args:
        scoring: the arithmetic of queries, keys, scores and softmax, if another one: for example a
            higher precision.
    """
    inner = arithmetic if scoring is None else scoring
    allowed = parts.mask(x)
    sides, wrongs = list[Tensor](), list[Tensor]()
    for index in range(parts.heads):
        side, wrong = _head(x, parts, (arithmetic, inner), error, index, allowed)
        sides.append(side)
        wrongs.append(wrong)
    joined = parts.joined_output()
    if joined is None:
        return torch.cat(wrongs, -1)
    return affine(
        torch.cat(sides, -1), joined, arithmetic, parts.output_bias, torch.cat(wrongs, -1)
    )


def _head(
    x: Sequence,
    parts: TheoryAttention,
    arithmetics: tuple[Arithmetic, Arithmetic],
    error: Sequence | None,
    index: int,
    allowed: AllowedKeys,
) -> tuple[Tensor, Tensor]:
    """Return the output of one head, and how far it may be off."""
    arithmetic, inner = arithmetics
    head = parts.head(index)
    exact = parts.scores(x, index)
    wrong = scores(x, parts, inner, error, index)
    weight_wrong = softmax(exact, inner, wrong, allowed, parts.shifted)
    chance = torch.softmax(exact.masked_fill(~allowed, -torch.inf), -1)
    value = functional.linear(x, head.value, head.value_bias)
    value_wrong = affine(x, head.value, arithmetic, head.value_bias, error)
    reach = arithmetic.reach(value.abs(), value_wrong)
    came = weight_wrong @ reach + chance @ value_wrong
    count = allowed.sum(-1).to(x)
    own = arithmetic.growth(product=1, sum=count - 1, store=1)[:, None]
    size = arithmetic.reach(chance, weight_wrong) @ reach
    return chance @ value, came + own * size
