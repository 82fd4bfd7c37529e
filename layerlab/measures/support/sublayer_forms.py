"""Whether a sublayer is what a theorem speaks about, decided by computing it again.

Attention is concat_h(A_h (z W_v + b_v)) W_o + b_o; a plain feed-forward layer is
act(z W_1 + b_1) W_2 + b_2, a gated one (act(z W_g + b_g) * (z W_1 + b_1)) W_2 + b_2. They are
formed on some rows and compared with what the model gave.
The comparison allows for rounding as random errors: each stored number is off by one unit
roundoff, each sum of n terms by sqrt(n) of them, and variances are carried through the same maps
with squared entries.

Source: higham19 (probabilistic rounding error analysis), with its lambda = 8.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor, nn

from layerlab.measures.support.activations import ACTIVATIONS, Elementwise
from layerlab.observe.architecture.effective_weights import linear_maps
from layerlab.observe.architecture.head_weights import HeadWeights
from layerlab.observe.tracing.attention_record import AttentionRecord
from layerlab.observe.tracing.attention_tiles import blocks
from layerlab.observe.tracing.device_schedule import read_host, widen
from layerlab.observe.tracing.records import Sublayer
from layerlab.shapes import Hidden, Matrix

ROWS = 64
TOGETHER = 2**22  # scores of all heads that are formed at once
CONFIDENCE = 8.0
STORED = 8
DISTINCT = 0.25
"""No rounding is allowed to explain more: another map would pass."""

_ATTENTION = re.compile("attn|attention", re.IGNORECASE)
_ROUTED = re.compile(r"(^|\.)(experts|router)(\.|$)")


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The relative distance of a formula from the output, and the part that rounding explains."""

    gap: float
    slack: float

    @property
    def holds(self) -> bool:
        return self.gap <= self.slack


@dataclass(frozen=True, kw_only=True)
class FeedForward:
    """The form of a feed-forward layer: act(z inward + b) outward + b, or a gated one.

    A gated one is (act(z gate + b) * (z inward + b)) outward + b.

    Attributes:
        maps: names of inward, outward and, in a gated one, gate; keys of `feedforward_maps`.
    """

    maps: tuple[str, ...]
    activation: Elementwise


@dataclass(frozen=True, kw_only=True)
class Linear:
    """z weight + bias, in float32, whichever way round the module stores it."""

    weight: Matrix
    bias: Tensor | float


def rounding(dtype: torch.dtype, terms: int, scores: float = 0.0) -> float:
    """Return how far rounding may move an output, relative to the size of what was summed.

    lambda (sqrt(8) u + sqrt(terms) (1 + scores) u_32),   lambda = 8

    Source: higham19, Theorem 2.4.
    Unit: none.

    Args:
        dtype: of what is stored between operations; sums are at best in float32.
        terms: the length of the sums.
        scores: the largest attention score, whose rounding moves a weight by u times itself.
    """
    stored = max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps) / 2
    summed = sqrt(terms) * (1 + scores) * torch.finfo(torch.float32).eps / 2
    return CONFIDENCE * (sqrt(STORED) * stored * (1 + scores) + summed)


def attention_fit(attended: AttentionRecord, weights: HeadWeights, sublayer: Sublayer) -> Fit:
    """Compare concat_h(A_h (z W_v + b_v)) W_o + b_o with the sublayer's output on some rows.

    Source: pangu23, equation 1.
    """
    assert weights.value is not None and weights.output is not None
    rows = slice(0, attended.tokens, -(-attended.tokens // ROWS))
    entered, left = sublayer.entered.float(), sublayer.left[rows].float()
    if attended.keys != len(entered) or weights.value.shape[-1] != entered.shape[1]:
        return Fit(gap=float("inf"), slack=DISTINCT)
    bias = weights.output_bias
    made = torch.zeros_like(left) if bias is None else bias.float().expand_as(left).clone()
    noise = left.square()
    largest = []
    for heads in blocks(attended.heads, max(1, TOGETHER // (ROWS * attended.keys))):
        scores = torch.where(attended.allowed_keys(heads, rows), attended.logits(heads, rows), 0.0)
        largest.append(scores.abs().max())
        matrix = attended.weights(heads, rows)
        value_weights = attended.of_kv_heads(weights.value, heads)
        inward, outward = value_weights.float().mT, weights.output[heads].float().mT
        value = entered @ inward
        if weights.value_bias is not None:
            value = value + attended.of_kv_heads(weights.value_bias, heads).float()[:, None]
        seen = matrix @ value
        made = made + (seen @ outward).sum(0)
        error = matrix.square() @ (value.square() + entered.square() @ inward.square())
        noise = noise + ((error + seen.square()) @ outward.square()).sum(0)
    terms = 2 * entered.shape[1] + attended.keys
    score, sizes = read_host([torch.stack(largest).max(), _sizes(made - left, noise)])
    return _fit(sizes, rounding(sublayer.left.dtype, terms, float(score)))


def feedforward_fit(block: nn.Module, sublayer: Sublayer) -> FeedForward | None:
    """Return the form that gives the sublayer's output, if any: the maps and the activation.

    Where the data cannot tell two activations apart, the one with the larger constant is taken.

    Source: pangu23, equation 3; shazeer20, equations 5 and 6.
    """
    step = -(-len(sublayer.entered) // ROWS)
    entered, left = sublayer.entered[::step].float(), sublayer.left[::step].float()
    slack = rounding(sublayer.left.dtype, 2 * entered.shape[1])
    maps = feedforward_maps(block)
    # Of experts there are too many to try three at a time, and each token has its own.
    counts = (2,) if is_routed(block) else (2, 3)
    tried = {
        names: _feedforward_sizes(entered, left, [maps[name] for name in names])
        for count in counts
        for names in permutations(maps, count)
        if _is_chained(entered, [maps[name] for name in names], left)
    }
    for names, sizes in zip(tried, read_host(list(tried.values())), strict=True):
        fits = [_fit(one, slack).holds for one in sizes]
        found = [one for one, holds in zip(ACTIVATIONS, fits, strict=True) if holds]
        if found:
            loosest = max(found, key=lambda activation: activation.lipschitz)
            return FeedForward(maps=names, activation=loosest)
    return None


def feedforward_maps(block: nn.Module) -> dict[str, Linear]:
    """Return the linear maps of a block that do not lie in its attention, by name.

    One that has twice as many columns as another has rows holds two side by side: both halves.
    """
    found = {
        path: Linear(weight=weight.float().T, bias=0.0 if bias is None else bias.float())
        for path, weight, bias in linear_maps(block)
        if not _ATTENTION.search(path)
    }
    halves = {2 * one.weight.shape[0] for one in found.values()}
    wide = {path: one for path, one in found.items() if one.weight.shape[1] in halves}
    return found | {
        f"{path}, {half} half": _cut(one, number)
        for path, one in wide.items()
        for number, half in enumerate(("first", "second"))
    }


def _cut(whole: Linear, number: int) -> Linear:
    bias = whole.bias if isinstance(whole.bias, float) else whole.bias.chunk(2)[number]
    return Linear(weight=whole.weight.chunk(2, dim=1)[number], bias=bias)


def is_routed(block: nn.Module) -> bool:
    """Return whether the feed-forward layer of a block chooses between experts for each token."""
    paths = (path for path, _ in block.named_modules())
    return any(_ROUTED.search(path) and not _ATTENTION.search(path) for path in paths)


def _is_chained(entered: Hidden, maps: Sequence[Linear], left: Hidden) -> bool:
    inward, outward, *gates = (one.weight.shape for one in maps)
    sizes = (entered.shape[1], *inward, *outward, left.shape[1])
    return sizes[0::2] == sizes[1::2] and all(gate == inward for gate in gates)


def _feedforward_sizes(
    entered: Hidden, left: Hidden, maps: Sequence[Linear]
) -> Float[Tensor, "activation 2"]:
    """Return, for every activation, what the form is off by beside the size of its errors."""
    inward, outward, *gates = maps
    (inner, error), *gated = (_apply(entered, one) for one in (inward, *gates))
    active, noise = list[Tensor](), list[Tensor]()
    for activation in ACTIVATIONS:
        given, of_given = gated[0] if gated else (inner, error)
        made = activation.function(given)
        off = activation.slope(given) ** 2 * of_given
        if gated:
            made, off = made * inner, off * inner.square() + made.square() * error
        active.append(made)
        noise.append(off + made.square())
    gap = torch.stack(active) @ outward.weight + outward.bias - left
    return _sizes(gap, torch.stack(noise) @ outward.weight.square() + left.square())


def _apply(entered: Hidden, map_: Linear) -> tuple[Tensor, Tensor]:
    """Return z W + b, and the variance of its rounding in units of one rounding."""
    made = entered @ map_.weight + map_.bias
    return made, made.square() + entered.square() @ map_.weight.square()


def _sizes(gap: Tensor, noise: Tensor) -> Tensor:
    """Return the size of what a formula is off by, and that of the output and its errors."""
    off, size = (widen(part).flatten(-2) for part in (gap, noise))
    return torch.stack([off.norm(dim=-1), size.sum(-1).sqrt()], -1)


def _fit(sizes: Iterable[Tensor | float], slack: float) -> Fit:
    gap, size = map(float, sizes)
    return Fit(gap=gap / max(size, 1e-300), slack=min(slack, DISTINCT))
