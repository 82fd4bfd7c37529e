"""How far rounding can move what attention computes: scores, softmax, heads, their projection.

As in `bounds.py`: absolute, for every entry, the input's own error carried through. One head at a
time holds a matrix of tokens by tokens.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from layerlab.numerics.arithmetic import Arithmetic
from layerlab.numerics.bounds import affine
from layerlab.numerics.sublayer import Attention, OneHead, Sequence

Scores = Float[Tensor, "*place token key"]
Allowed = Bool[Tensor, "token key"]


def rotary(
    x: OneHead, parts: Attention, arithmetic: Arithmetic, error: OneHead | None = None
) -> OneHead:
    """Of x cos + turned(x) sin: 2 u (|c x_a| + |s x_b|), 3 u with rounded tables.

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
    size = reach(x.abs() if error is None else x.abs() + arithmetic.second * error)
    return came + arithmetic.growth(rotary=2, constant=1) * size


def scores(
    x: Sequence,
    parts: Attention,
    arithmetic: Arithmetic,
    error: Sequence | None = None,
    index: int = 0,
) -> Float[Tensor, "*place token token"]:
    """Of s (R q) . (R k), q = W_q x + b_q, k = W_k x + b_k, of one head.

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
    query, key = parts.rotated(raw_query).abs(), parts.rotated(raw_key).abs()
    second = arithmetic.second
    scale = abs(parts.scale)
    came = query_wrong @ key.mT + (query + second * query_wrong) @ key_wrong.mT
    size = (query + second * query_wrong) @ (key + second * key_wrong).mT
    own = arithmetic.growth(product=1, sum=query.shape[-1] - 1, scale=1, constant=1, store=1)
    return scale * (came + own * size)


def softmax(
    s: Scores,
    arithmetic: Arithmetic,
    error: Scores | None = None,
    allowed: Allowed | None = None,
    shifted: bool = True,
) -> Scores:
    """Of each row p of a softmax, and relative to it: |computed - p| <= bound p.

    own:    (t + 2) u, and (max s - s_j) u + p . (max s - s) u where the largest is taken away
    came:   (1 - 2 p_j) error_j + p . error in first order; in full the exact extremes of
            exp(error_j) / sum p exp(-error), so never less than exp(2 max error) - 1 allows

    t is the number of allowed entries of the row: exact zeros cost nothing.

    Source: budzinskiy25, Lemma 4.19 and Corollary 4.20; the full form Own.
    Differs: of the input's error the source has the first order only, no bound for large scores.
    """
    seen = torch.ones_like(s, dtype=torch.bool) if allowed is None else allowed.expand(s.shape)
    hidden = s.masked_fill(~seen, -torch.inf)
    chance = torch.softmax(hidden, -1)
    count = seen.sum(-1, keepdim=True).to(s)
    came = torch.zeros_like(s) if error is None else error.masked_fill(~seen, 0.0)
    down = (hidden.amax(-1, keepdim=True) - s).masked_fill(~seen, 0.0)
    if arithmetic.first_order:
        moved = (1 - 2 * chance) * came + _mean(chance, came)
        if shifted:
            moved = moved + arithmetic.growth(softmax=1) * (down + _mean(chance, down))
        return moved + arithmetic.growth(softmax=count + 2, store=1)
    if shifted:
        deepest = down + came + came.amax(-1, keepdim=True)
        came = came + arithmetic.growth(softmax=1) * deepest
    # log(1 + growth) is how much the roundings after the differences move a logarithm.
    own = torch.log1p(arithmetic.growth(softmax=count + 2, store=1))
    logarithm = torch.log_softmax(hidden, -1)
    low = torch.logsumexp(logarithm - came, -1, keepdim=True)
    high = torch.logsumexp(logarithm + came, -1, keepdim=True)
    upper = torch.expm1(came - low + own)
    lower = -torch.expm1(-(came + high + own))
    return torch.maximum(upper, lower).masked_fill(~seen, 0.0)


def _mean(chance: Scores, what: Scores) -> Float[Tensor, "*place token 1"]:
    return (chance * what).sum(-1, keepdim=True)


def attention(
    x: Sequence,
    parts: Attention,
    arithmetic: Arithmetic,
    error: Sequence | None = None,
    scoring: Arithmetic | None = None,
) -> Float[Tensor, "*place token out"]:
    """Of attention with any number of heads, and of its output projection.

    Never above the uniform form, relative to the result,
    xi_A [2t + d + H d_h + 4 + 2 max (2d + d_h + 3) E + 2 range] u   (first order, biases counted)
    with the range of the scores of a row; without a projection H d_h + 1 of it falls away.
    In full arithmetic a weight that is computed is at most 1 and a hair, which caps the error.

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
    joined = parts.joined()
    if joined is None:
        return torch.cat(wrongs, -1)
    return affine(
        torch.cat(sides, -1), joined, arithmetic, parts.output_bias, torch.cat(wrongs, -1)
    )


def _head(
    x: Sequence,
    parts: Attention,
    arithmetics: tuple[Arithmetic, Arithmetic],
    error: Sequence | None,
    index: int,
    allowed: Allowed,
) -> tuple[Tensor, Tensor]:
    """What one head gives, and how far it may be off."""
    arithmetic, inner = arithmetics
    head, second = parts.head(index), arithmetic.second
    exact = parts.scores(x, index)
    share = softmax(exact, inner, scores(x, parts, inner, error, index), allowed, parts.shifted)
    chance = torch.softmax(exact.masked_fill(~allowed, -torch.inf), -1)
    value = functional.linear(x, head.value, head.value_bias)
    value_wrong = affine(x, head.value, arithmetic, head.value_bias, error)
    weight_wrong = (chance * share).masked_fill(~allowed, 0.0)
    if second:
        # A weight that underflows here may not do so where it is computed with an error.
        largest = 1 + inner.growth(softmax=x.shape[-2] + 2, store=1)
        raised = chance.clamp_min(torch.finfo(chance.dtype).tiny) * share
        weight_wrong = torch.minimum(raised, largest.to(chance)).masked_fill(~allowed, 0.0)
    reach = value.abs() + second * value_wrong
    came = weight_wrong @ reach + chance @ value_wrong
    count = allowed.sum(-1).to(x)
    own = arithmetic.growth(product=1, sum=count - 1, store=1)[:, None]
    size = (chance + second * weight_wrong) @ reach
    return chance @ value, came + own * size
