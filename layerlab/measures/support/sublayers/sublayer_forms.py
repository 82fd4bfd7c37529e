"""Forms of sublayers that theorems speak about, recognized by computing them again.

Attention is concat_h(A_h (z W_v + b_v)) W_o + b_o; a plain feed-forward layer is
act(z W_1 + b_1) W_2 + b_2, a gated one (act(z W_g + b_g) * (z W_1 + b_1)) W_2 + b_2, where act may
be a series; a shortcut is the sum of act(z Theta) or act(z W_down) W_up over its paths. They are
formed on some rows and compared with what the model gave.
The comparison allows for rounding as random errors: each stored number is off by one unit
roundoff, each sum of n terms by sqrt(n) of them, and variances are carried through the same maps
with squared entries.

Source: higham19 (probabilistic rounding error analysis), with its lambda = 8.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, permutations
from math import isfinite, sqrt

import torch
from jaxtyping import Float
from torch import Tensor, nn

from layerlab.measures.support.sublayers.activations import (
    ACTIVATIONS,
    Elementwise,
    Series,
    list_series,
)
from layerlab.observe.architecture.effective_weights import linear_maps
from layerlab.observe.architecture.head_weights import HeadWeights
from layerlab.observe.tracing.attention.record import AttentionRecord
from layerlab.observe.tracing.attention.tiles import blocks
from layerlab.observe.tracing.device_schedule import widen
from layerlab.observe.tracing.host_steps import Steps
from layerlab.observe.tracing.records import Sublayer
from layerlab.shapes import Hidden, Matrix

Entered = Float[Tensor, "token inner"]
MapNames = tuple[str, ...]

ROWS = 64
TOGETHER = 2**22  # scores of all heads that are formed at once
CONFIDENCE = 8.0
STORED = 8
FEW = 4  # rows that sift many forms, those of the largest output
SIFTED = sqrt(ROWS / FEW)  # how much more their rounding may be: so much less output is there
# No rounding explains more: another map, or activation (all stored off one way in bfloat16), would.
DISTINCT, ACTIVATED = 0.25, STORED * torch.finfo(torch.bfloat16).eps / 2
APART = 2.0  # a form is ruled out where it is more than so many times as far off as the nearest

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

    @property
    def has_constant(self) -> bool:
        """Return whether Theorem 3 or 7 gives it a constant, whatever goes through it."""
        return len(self.maps) == 2 and isfinite(self.activation.lipschitz)

    @property
    def is_series(self) -> bool:
        return " x " in self.activation.name

    def inside(self, block: nn.Module, entered: Hidden) -> tuple[Entered, Entered | None]:
        """Return z inward + b and, where it is gated, z gate + b, in float32."""
        maps = feedforward_maps(block)
        inward, _, *gates = (maps[name] for name in self.maps)
        inner, *given = (entered.float() @ one.weight + one.bias for one in (inward, *gates))
        return inner, given[0] if given else None

    def value(self, block: nn.Module, entered: Hidden) -> Hidden:
        """Return what the form gives, in float32."""
        inner, gate = self.inside(block, entered)
        act, outward = self.activation.function, feedforward_maps(block)[self.maps[1]]
        made = act(inner) if gate is None else act(gate) * inner
        return made @ outward.weight + outward.bias


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


def find_underflow(features: Hidden) -> str | None:
    """Return why features cannot be compared with a form, where most of them underflow."""
    if float(features.abs().median()) >= torch.finfo(features.dtype).tiny:
        return None
    dtype = str(features.dtype).removeprefix("torch.")
    return f"its features underflow in {dtype}"


def attention_fit(
    attended: AttentionRecord, weights: HeadWeights, sublayer: Sublayer
) -> Steps[Fit]:
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
    noise = torch.zeros_like(left)
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
    score, sizes = yield [torch.stack(largest).max(), measure_gap(made - left, noise, left)]
    return _fit(sizes.tolist(), rounding(sublayer.left.dtype, terms, float(score)))


@dataclass(frozen=True, kw_only=True)
class SiftedForms:
    """The forms of a feed-forward layer that a few of its rows do not rule out.

    Attributes:
        maps: what `feedforward_maps` finds.
        activations: those that are left, of each chain of maps.
        entered: rows of what the layer reads.
        left: what it makes of them.
        slack: what rounding explains.
    """

    maps: Mapping[str, Linear]
    activations: Mapping[MapNames, Sequence[Elementwise]]
    entered: Hidden
    left: Hidden
    slack: float

    @property
    def form(self) -> FeedForward | None:
        """Return the first form that is left."""
        for names, (activation, *_) in self.activations.items():
            return FeedForward(maps=names, activation=activation)
        return None

    def choose(self) -> Steps["SiftedForms"]:
        """Return the form that gives the output in all rows, alone, or none.

        Where the data cannot tell two activations apart, the one with the larger constant is taken.
        """
        if not self.activations:
            return self
        sizes, chains = list[Tensor](), list[MapNames]()
        activations = list[Elementwise]()
        for names, each in self.activations.items():
            given = self.entered, self.left, self.maps, [names], each
            sizes.append(_feedforward_sizes(*given)[:, 0])
            chains += [names] * len(each)
            activations += each
        (read,) = yield [torch.cat(sizes)]
        best = choose_loosest(activations, read, self.slack)
        left = {} if best is None else {chains[best]: [activations[best]]}
        return replace(self, activations=left)


def sift_feedforward(block: nn.Module, sublayer: Sublayer) -> Steps[SiftedForms]:
    """Return the forms that may give the sublayer's output: their maps and activations.

    Source: pangu23, equation 3; shazeer20, equations 5 and 6.
    """
    step = -(-len(sublayer.entered) // ROWS)
    entered, left = sublayer.entered[::step].float(), sublayer.left[::step].float()
    slack = min(rounding(sublayer.left.dtype, 2 * entered.shape[1]), ACTIVATED)
    maps = feedforward_maps(block)
    # Of experts there are too many to try three at a time, and each token has its own.
    counts = (2,) if is_routed(block) else (2, 3)
    chains = [
        names
        for count in counts
        for names in permutations(maps, count)
        if _is_chained(entered, [maps[name] for name in names], left)
    ]
    kept = yield from _sift(entered, left, maps, chains, list_series(block), slack)
    return SiftedForms(maps=maps, activations=kept, entered=entered, left=left, slack=slack)


def choose_loosest(activations: Sequence[Elementwise], sizes: Tensor, slack: float) -> int | None:
    """Return which form of those about as near as the nearest has the largest constant, if any.

    Args:
        activations: of each form.
        sizes: what `measure_gap` finds for it.
        slack: what rounding explains.
    """
    pairs = enumerate(sizes.tolist())
    fits = [(number, size[0]) for number, size in pairs if _fit(size, slack).holds]
    least = min((off for _, off in fits), default=0.0)
    found = [number for number, off in fits if off <= APART * least]
    return max(found, key=lambda number: activations[number].lipschitz, default=None)


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


def _cut(fused: Linear, number: int) -> Linear:
    bias = fused.bias if isinstance(fused.bias, float) else fused.bias.chunk(2)[number]
    return Linear(weight=fused.weight.chunk(2, dim=1)[number], bias=bias)


def is_routed(block: nn.Module) -> bool:
    """Return whether the feed-forward layer of a block chooses between experts for each token."""
    paths = (path for path, _ in block.named_modules())
    return any(_ROUTED.search(path) and not _ATTENTION.search(path) for path in paths)


def _is_chained(entered: Hidden, maps: Sequence[Linear], left: Hidden) -> bool:
    inward, outward, *gates = (one.weight.shape for one in maps)
    sizes = (entered.shape[1], *inward, *outward, left.shape[1])
    return sizes[0::2] == sizes[1::2] and all(gate == inward for gate in gates)


def _sift(
    entered: Hidden,
    left: Hidden,
    maps: Mapping[str, Linear],
    chains: Sequence[MapNames],
    series: Sequence[Series],
    slack: float,
) -> Steps[dict[MapNames, list[Elementwise]]]:
    """Return the forms that a few rows do not rule out: there are too many to form all rows."""
    rows = left.norm(dim=1).topk(min(FEW, len(left))).indices
    alike: dict[str, list[MapNames]] = {}
    for names in chains:
        alike.setdefault(names[1], []).append(names)
    # Of a series that is one activation as yet, the series is found.
    forms = {out: [*_list_forms(series, maps[out]), *ACTIVATIONS] for out in alike}
    sizes = [
        _feedforward_sizes(entered[rows], left[rows], maps, each, forms[out])
        for out, each in alike.items()
    ]
    kept: dict[MapNames, list[Elementwise]] = {}
    for (out, each), read in zip(alike.items(), (yield sizes), strict=True):
        for names, pairs in zip(each, read.transpose(0, 1).tolist(), strict=True):
            kept[names] = [
                one
                for one, pair in zip(forms[out], pairs, strict=True)
                if (fit := _fit(pair, slack)).gap <= SIFTED * fit.slack
            ]
    return {names: kept[names] for names in chains if kept[names]}


def _list_forms(series: Sequence[Series], outward: Linear) -> list[Elementwise]:
    """Return the series of activations to try in front of a map."""
    plain = [one for one in ACTIVATIONS if isfinite(one.lipschitz)]
    fitting = [one for one in series if one.scales.shape[1] in (1, outward.weight.shape[0])]
    return [form for one in fitting for each in plain for form in one.forms(each)]


def _feedforward_sizes(
    entered: Hidden,
    left: Hidden,
    maps: Mapping[str, Linear],
    chains: Sequence[MapNames],
    activations: Sequence[Elementwise],
) -> Float[Tensor, "activation chain 2"]:
    """Return what every form is off by beside the size of its errors, where one map leads out.

    One without a gate is one whose other factor is 1.
    """
    outward = maps[chains[0][1]]
    inside = [(inward, *gates) for inward, _, *gates in chains]
    applied = {name: apply_linear(entered, maps[name]) for name in set(chain.from_iterable(inside))}
    unit = tuple(torch.full_like(applied[inside[0][0]][0], value) for value in (1, 0))
    factors = [applied[names[0]] if names[1:] else unit for names in inside]
    inner, error = map(torch.stack, zip(*factors, strict=True))
    given, of_given = map(torch.stack, zip(*(applied[names[-1]] for names in inside), strict=True))
    active = torch.stack([one.function(given) for one in activations])
    off = torch.stack([one.local_slope(given) ** 2 * of_given for one in activations])
    made = active * inner
    noise = off * inner.square() + active.square() * error + made.square()
    gap = made @ outward.weight + outward.bias - left
    return measure_gap(gap, noise @ outward.weight.square(), left)


def apply_linear(entered: Hidden, map_: Linear) -> tuple[Tensor, Tensor]:
    """Return z W + b, and the variance of its rounding in units of one rounding."""
    made = entered @ map_.weight + map_.bias
    return made, made.square() + entered.square() @ map_.weight.square()


def measure_gap(gap: Tensor, noise: Tensor, left: Hidden) -> Float[Tensor, "*batch 2"]:
    """Return how far a formula is off the output: relative to that, and to that and its errors.

    The root mean square over rows, each by its own size: one that is far larger hides no other.
    """
    off, size = (widen(part).square().sum(-1) for part in (gap, left))
    least = torch.finfo(size.dtype).tiny  # of rows of zeros
    shares = [off / (part + least) for part in (size, size + widen(noise).sum(-1))]
    return torch.stack(shares, -1).mean(-2).sqrt()


def _fit(sizes: Iterable[float], slack: float) -> Fit:
    _, gap = sizes
    return Fit(gap=gap, slack=min(slack, DISTINCT))
