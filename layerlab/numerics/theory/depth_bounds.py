"""Rounding through blocks and whole stacks: a bound that runs along, and Theorem 4.30.

`stack` carries absolute errors of every entry through a model, at the values it really has: the
running bound. `recursion` is Theorem 4.30 with its factors read off the data, one number per layer,
`printed_bound` the form of the source. The last two multiply worst cases of whole layers: for
ordinary weights they pass 1 in the first layers and say nothing from there on. Never use them as
a level of warning.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from layerlab.numerics.theory import attention_bounds, condition_numbers, error_bounds
from layerlab.numerics.theory.modules import Sequence as Stream
from layerlab.numerics.theory.modules import TheoryBlock
from layerlab.numerics.theory.roundoff_model import Arithmetic


@dataclass(frozen=True, kw_only=True, eq=False)
class BlockOutput:
    """The output of a block and how far rounding can have moved it, entry by entry."""

    value: Stream
    error: Stream


@dataclass(frozen=True, kw_only=True)
class LayerFactors:
    """The factors of one layer in Theorem 4.30: conditions, own errors, cancellations.

    Each is the largest over all tokens. `*_own` are relative rounding errors for an exact input.
    """

    norm: float
    norm_own: float
    attention: float
    attention_own: float
    middle: float
    middle_norm: float
    middle_norm_own: float
    feedforward: float
    feedforward_own: float
    last: float
    added: float

    @property
    def factor(self) -> float:
        """Return by how much the layer may multiply an error that it receives."""
        first = self.middle * max(1.0, self.attention * self.norm)
        return first * self.last * max(1.0, self.feedforward * self.middle_norm)

    def after(self, error: float) -> float:
        """Return rho_c behind the layer, from rho_c in front of it."""
        # An exact input has no error, however steep the norm is.
        grown = self.norm * error if error else 0.0
        attended = self.attention * (grown + self.norm_own) + self.attention_own
        middle = self.middle * max(error, attended) + self.added
        normed = self.middle_norm * middle + self.middle_norm_own
        left = self.feedforward * normed + self.feedforward_own
        return self.last * max(middle, left) + self.added


def block(
    x: Stream,
    parts: TheoryBlock,
    arithmetic: Arithmetic,
    error: Stream | None = None,
    scoring: Arithmetic | None = None,
) -> BlockOutput:
    """Return a pre-norm block's output with its bound.

    Norm, attention, residual sum, norm, feed-forward, sum.

    Source: budzinskiy25, Lemmas 4.25 to 4.29, in absolute form.

    Args:
        error: what the input may already be off by.
        scoring: the arithmetic of queries, keys, scores and softmax, if another one.
    """
    start = torch.zeros_like(x) if error is None else error
    normed = parts.attention_norm.value(x)
    came = error_bounds.norm(x, parts.attention_norm, arithmetic, start)
    attended = parts.attention.value_of(normed)
    wrong = attention_bounds.attention(normed, parts.attention, arithmetic, came, scoring)
    middle = x + attended
    start = error_bounds.residual(x, attended, arithmetic, start, wrong)
    normed = parts.feedforward_norm.value(middle)
    came = error_bounds.norm(middle, parts.feedforward_norm, arithmetic, start)
    left = parts.feedforward.value(normed)
    wrong = error_bounds.mlp(normed, parts.feedforward, arithmetic, came)
    return BlockOutput(
        value=middle + left, error=error_bounds.residual(middle, left, arithmetic, start, wrong)
    )


def stack(
    x: Stream, blocks: Sequence[TheoryBlock], arithmetic: Arithmetic, error: Stream | None = None
) -> Iterator[BlockOutput]:
    """Yield the running bound behind each block.

    Source: Own.
    """
    for parts in blocks:
        step = block(x, parts, arithmetic, error)
        x, error = step.value, step.error
        yield step


def layer(x: Stream, parts: TheoryBlock, arithmetic: Arithmetic) -> LayerFactors:
    """Return the factors of Theorem 4.30 for one block at one input.

    A norm's condition is 2 for RMS and that of `conditioning.norm` for layer norm, the attention's
    xi_A (1 + 2 max num), the feed-forward's xi_M.

    Source: budzinskiy25, Lemmas 4.25 to 4.29.
    """
    linear = arithmetic.linear()
    normed = parts.attention_norm.value(x)
    attended = parts.attention.value_of(normed)
    middle = x + attended
    middle_normed = parts.feedforward_norm.value(middle)
    left = parts.feedforward.value(middle_normed)
    own = error_bounds.relative
    return LayerFactors(
        norm=_most(condition_numbers.norm(x, parts.attention_norm)),
        norm_own=_most(own(error_bounds.norm(x, parts.attention_norm, linear), normed)),
        attention=_most(condition_numbers.attention(normed, parts.attention)),
        attention_own=_most(
            own(attention_bounds.attention(normed, parts.attention, linear), attended)
        ),
        middle=_most(condition_numbers.residual(x, attended)),
        middle_norm=_most(condition_numbers.norm(middle, parts.feedforward_norm)),
        middle_norm_own=_most(
            own(error_bounds.norm(middle, parts.feedforward_norm, linear), middle_normed)
        ),
        feedforward=_most(condition_numbers.mlp(middle_normed, parts.feedforward)),
        feedforward_own=_most(
            own(error_bounds.mlp(middle_normed, parts.feedforward, linear), left)
        ),
        last=_most(condition_numbers.residual(middle, left)),
        added=arithmetic.residual,
    )


def _most(numbers: Tensor) -> float:
    return float(numbers.max())


def recursion(x: Stream, blocks: Sequence[TheoryBlock], arithmetic: Arithmetic) -> list[float]:
    """Return rho_c behind each block by Theorem 4.30: first order, worst case times worst case.

    m = chi_1 max(rho, k_A (k_1 rho + own) + own) + u
    rho <- chi_2 max(m, xi_M (k_2 m + own) + own) + u

    It is a bound only while it stays far below 1, and vacuous from 1 on.

    Source: budzinskiy25, Theorem 4.30.
    Differs: the source takes 4 ||B|| max ||x||^2 for what is here 2 max num, and a RMS norm's
        condition as 2; its leading constants are unreadable, so own errors are those of `bounds`.
    """
    found, error = list[float](), 0.0
    for parts in blocks:
        error = layer(x, parts, arithmetic).after(error)
        found.append(error)
        x = parts.value(x)
    return found


def weight_factor(parts: TheoryBlock) -> float:
    """Return a layer's factor from its weights: 4 (1 + 4 s G^2 max_h sigma_max(W_k^T W_q)).

    Without the factors xi and chi of the data, each at least 1; two RMS norms make the 4. G is the
    longest normed row, sqrt(d) max |gain| + ||shift||: with one head, gain 1 and s = 1/sqrt(d) it
    is 4 (1 + 4 sqrt(d) sigma_max).

    Source: budzinskiy25, Theorem 4.30 and Remark 3.15; gains and heads Own.
    """
    norm, attention = parts.attention_norm, parts.attention
    width = attention.query.shape[-1]
    gain = 1.0 if norm.gain is None else float(norm.gain.abs().max())
    longest = width**0.5 * gain + (0.0 if norm.shift is None else float(norm.shift.norm()))
    largest = float(condition_numbers.form_norms(attention).max())
    return 4 * (1 + 4 * abs(attention.scale) * longest**2 * largest)


def printed_factor(parts: TheoryBlock) -> float:
    """Return the worst head's factor of a layer as the source prints it.

    1 + 4 sqrt(d) sigma_max(|W_k|^T |W_q|) sigma_max / sigma_min(W_k^T W_q)

    inf for a singular W_k^T W_q, which every head narrower than the model has.

    Source: budzinskiy25, Theorem 4.30.
    """
    attention = parts.attention
    width = attention.query.shape[-1]
    worst = 0.0
    for head in map(attention.head, range(attention.heads)):
        values = condition_numbers.product_singular_values(head.key, head.query)
        absolute = float(
            condition_numbers.product_singular_values(head.key.abs(), head.query.abs())[0]
        )
        smallest = float(values[-1]) if len(values) == width else 0.0
        if not smallest:
            return torch.inf
        worst = max(worst, 1 + 4 * width**0.5 * absolute * (float(values[0]) / smallest))
    return worst


def printed_bound(
    x: Stream, blocks: Sequence[TheoryBlock], unit: float, constant: float | None = None
) -> float:
    """Return Theorem 4.30 for RMS norms as the source prints it.

    prod_l chi_l factor_l (4^L / 3) c u

    c = 16 n + 23 d + 17 D. The base 4 and c are readings of a garbled formula, chi_l is taken as
    the product of both chi and both xi of the layer. For layer norms the source has 16^L / 15 and
    c = 8 n + 3 d + D, which contradict the RMS form and are not offered.

    Source: budzinskiy25, Theorem 4.30.

    Args:
        constant: another c.
    """
    tokens, width = x.shape[-2:]
    found = 4.0 ** len(blocks) / 3
    for parts in blocks:
        inner = parts.feedforward.inward.shape[0]
        normed = parts.attention_norm.value(x)
        attended = parts.attention.value_of(normed)
        middle = x + attended
        normed_middle = parts.feedforward_norm.value(middle)
        left = parts.feedforward.value(normed_middle)
        found *= _most(condition_numbers.residual(x, attended))
        found *= _most(condition_numbers.residual(middle, left))
        found *= _most(condition_numbers.cancellation(normed, parts.attention))
        found *= _most(condition_numbers.mlp(normed_middle, parts.feedforward))
        found *= printed_factor(parts)
        x = middle + left
        constant = 16 * tokens + 23 * width + 17 * inner if constant is None else constant
    return found * (constant or 0.0) * unit
