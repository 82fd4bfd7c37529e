"""By how much attention and feed-forward change the distance between tokens, beside the theorems.

`measured` is d_M(out) / d_M(in) of a sublayer, d_M the distance from equal tokens. Theorem 2 bounds
it for attention by sqrt(lambda H) s v1, Theorem 3 for a plain feed-forward layer by L s v2, Theorem
7 for one with a series of activations by the sum of their slopes in place of L. A gated one has no
such constant; what the weights allow on the range that its gate takes bounds it there.
Whether a layer is of the form a theorem speaks about is not guessed from its class: its output is
computed again from that form, and the bound is given only where this reproduces what the model
computed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, nan, sqrt

import torch
from jaxtyping import Float
from torch import Tensor

from layerlab.errors import NotApplicable
from layerlab.measures.measure import Bound, Measure, MeasureContext, Row
from layerlab.measures.quantities.diversity import diversity
from layerlab.measures.support.activations import Elementwise
from layerlab.measures.support.attention_pass import (
    End,
    HeadQuantity,
    heads_of,
    read_heads,
)
from layerlab.measures.support.golub_kahan import spectral_bounds
from layerlab.measures.support.lanczos import CentredRitz, Process
from layerlab.measures.support.products import Profile
from layerlab.measures.support.sublayer_forms import (
    FeedForward,
    attention_fit,
    feedforward_fit,
    feedforward_maps,
    is_routed,
    rounding,
)
from layerlab.observe.architecture.head_weights import HeadWeights
from layerlab.observe.tracing.attention_record import AttentionRecord
from layerlab.observe.tracing.attention_tiles import DENSE_TOKENS
from layerlab.observe.tracing.device_schedule import read_numbers, widen
from layerlab.observe.tracing.records import Layer, Sublayer
from layerlab.shapes import HeadVector, Hidden, Scalar

OTHER = (
    "it is neither act(z W1 + b1) W2 + b2, which Theorem 3 speaks of, nor a gated one, "
    "(act(z Wg + bg) * (z W1 + b1)) W2 + b2"
)
MIXED = (
    "it is a mixture of experts: the map changes from token to token, and Theorem 3 needs the same "
    "act(z W1 + b1) W2 + b2 for all of them"
)
SINKS = "attention sinks take probability, so its rows do not sum to 1"


def contraction(attended: AttentionRecord, *, exact: bool = False) -> HeadVector:
    """Return the largest factor by which a head's attention can scale its values' diversity.

    sqrt(lambda) = ||(I - e e^T) A||_2   with   e = (1, ..., 1) / sqrt(n)

    0 means that all rows of A agree, so that all tokens leave alike. Under a causal mask it may
    exceed 1: the source's lambda < 1 holds for doubly stochastic A.

    Source: pangu23, Lemma 1; kuczynski92 (how far products from a random start may fall short).
    Unit: none.

    Args:
        attended: one layer on one sequence; its rows sum to 1.
        exact: by a decomposition in float64, one head at a time; else by products with A alone,
            which now and then stop at a smaller singular value.
    """
    if not exact:
        return read_heads(attended, [_CONTRACTION])["contraction"]
    norms = []
    for head in range(attended.heads):
        matrix = attended.weights(slice(head, head + 1), dtype=torch.float64)
        norms.append(torch.linalg.matrix_norm(matrix - matrix.mean(1, keepdim=True), 2))
    return torch.cat(norms)


def _solve(part: AttentionRecord, known: Profile) -> tuple[Sequence[Process], End]:
    ritz = CentredRitz(known, part.sums_to_one)
    return (ritz,), lambda: {"contraction": ritz.norm}


_CONTRACTION = HeadQuantity(columns=("contraction",), solve=_solve)


def spectral_bound(matrix: Float[Tensor, "*batch row column"]) -> Float[Tensor, " *batch"]:
    """Return the spectral norm, never below the true one: it enters a bound.

    ||W||_2 = sqrt(lambda_max(W W^T)), in float64, from above; at most 1 + m (n + 8) eps too large
    where the products of a Lanczos run have found it

    Source: golub13, sections 4.2 and 8.1.
    Unit: that of the weights.
    """
    return spectral_bounds([matrix])[0]


def attention_bound(
    contractions: HeadVector, values: HeadVector, output: Scalar
) -> tuple[Scalar, Scalar]:
    """Return the bound of Theorem 2, as the source has it and with each head's own constants.

    d_M(MSA(Z)) <= sqrt(lambda H) s v1 d_M(Z),   lambda = max_h lambda_h,  s = max_h s_h
    d_M(MSA(Z)) <= sqrt(sum_h lambda_h s_h^2) v1 d_M(Z)

    Below 1, attention must bring the tokens closer to each other. Holds for every A whose rows sum
    to 1, causal or not.

    Source: pangu23, Theorem 2; the second line: Own, from Lemma 2.
    Unit: none.

    Args:
        contractions: sqrt(lambda_h).
        values: s_h, the spectral norm of each head's value weights.
        output: v1, the spectral norm of the output weights.
    """
    plain = contractions.max() * sqrt(len(contractions)) * values.max() * output
    return plain, (contractions * values).norm() * output


def range_bound(
    inner: Hidden, gate: Hidden | None, activation: Elementwise, norms: Sequence[Scalar]
) -> Scalar:
    """Return how far a feed-forward layer can scale diversity on the range that its inside takes.

    d_M(FFN(Z)) <= s_o (max_ij |act(g_ij)| s_i + L max_j |m_j| s_g) d_M(Z)

    with a gate, g = z W_g + b_g and m the mean over tokens of z W_i + b_i; or with the maxima of
    act at the mean of g and of all z W_i + b_i instead, whichever is less. L is the slope of the
    activation, for one without a largest slope that on the range. Without a gate: L s_i s_o.
    Of a product a b less that of the means, one factor is at a token and the other at the mean:
    act(g) v - act(mean g) m = act(g) (v - m) + (act(g) - act(mean g)) m, and so the other way.
    The distance from equal tokens is at most that from any one token, as from act(mean g) m.

    Source: Own, after pangu23, Theorem 3.
    Unit: none.

    Args:
        inner: z W_i + b_i of every token.
        gate: z W_g + b_g of every token.
        norms: spectral norms s_i, s_o and, with a gate, s_g.
    """
    if gate is None:
        return norms[0] * norms[1] * activation.slope(inner)
    within, behind, through = norms
    act, slope = activation.function, activation.slope(gate)

    def allow(given: Tensor, carried: Tensor) -> Tensor:
        return act(given).abs().max() * within + slope * carried.abs().max() * through

    least = torch.minimum(allow(gate, inner.mean(0)), allow(gate.mean(0), inner))
    return behind * least


@dataclass(frozen=True, kw_only=True)
class Constants:
    """The part of the weights of one sublayer in its bound, or why there is none.

    Attributes:
        size: the product of its norms without attention's part, where that is the bound itself.
        values: the s_h of attention.
        form: of a feed-forward layer.
        norms: of the maps of that form.
    """

    size: Tensor = field(default_factory=lambda: torch.tensor(nan))
    values: Tensor | None = None
    output: Tensor | None = None
    form: FeedForward | None = None
    norms: Sequence[Tensor] = ()
    refused: str | None = None


def attention_constants(layer: Layer, sublayer: Sublayer) -> Constants:
    """Return what the weights of attention bring to Theorem 2, once its form is checked.

    Source: pangu23, Theorem 2.

    Raises:
        NotApplicable: it is not the linear map that the theorem speaks of.
    """
    attended, weights = layer.attention, layer.weights
    if attended is None:
        raise NotApplicable("its attention was not heard")
    if not attended.sums_to_one:
        raise NotApplicable(SINKS)
    if weights is None or weights.value is None or weights.output is None:
        raise NotApplicable(_missing(weights))
    fit = attention_fit(attended, weights, sublayer)
    if not fit.holds:
        raise NotApplicable(
            "its value path is not the linear map of Theorem 2: concat_h(A_h (z W_v + b_v)) W_o "
            f"+ b_o is off its output by {fit.gap:.1e}, and rounding explains {fit.slack:.1e}"
        )
    each, output = spectral_bounds([weights.value, weights.output.permute(1, 0, 2).flatten(1)])
    heads = attended.heads
    values = each.repeat_interleave(heads // len(each))
    size = sqrt(heads) * values.max() * output
    return Constants(size=size, values=values, output=output)


def _missing(weights: HeadWeights | None) -> str:
    if weights is None:
        return "its weights were not found"
    for part in ("value", "output"):
        if part in weights.refused:
            return weights.refused[part]
    return "its value and output weights were not found"


def feedforward_constants(layer: Layer, sublayer: Sublayer) -> Constants:
    """Return what the weights of a feed-forward layer bring to its bound, once its form is checked.

    Source: pangu23, Theorems 3 and 7.

    Raises:
        NotApplicable: it is of no form that has a bound.
    """
    if layer.block is None:
        raise NotApplicable("its block was not found")
    fit = feedforward_fit(layer.block, sublayer)
    if fit is None:
        raise NotApplicable(MIXED if is_routed(layer.block) else OTHER)
    maps = feedforward_maps(layer.block)
    norms = spectral_bounds([maps[name].weight for name in fit.maps])
    size = fit.activation.lipschitz * norms[0] * norms[1] if fit.has_constant else torch.tensor(nan)
    return Constants(size=size, form=fit, norms=norms)


_CONSTANTS: dict[str, Callable[[Layer, Sublayer], Constants]] = {
    "attention": attention_constants,
    "ffn": feedforward_constants,
}


def _constants(layer: Layer, name: str, run: MeasureContext) -> Constants:
    """Compute the constants from the first sequence, and keep them for the others."""
    key = (layer.layer, name)
    if key not in run.memory:
        try:
            run.memory[key] = _CONSTANTS[name](layer, layer.sublayers[name])
        except NotApplicable as error:
            run.memory[key] = Constants(refused=str(error))
            remark = f"bound: not applicable to {name} of {{layers}}, because {error}"
            run.note_layer(f"bound ({name})", remark, layer.layer)
    return run.memory[key]


def _theorem(layer: Layer, constants: Constants, exact: bool) -> dict[str, Tensor]:
    """Return the columns of Theorem 2, as far as it applies."""
    attended = layer.attention
    if attended is None or not attended.sums_to_one:
        return {}
    if exact:
        contractions = contraction(attended, exact=True)
    else:
        contractions = heads_of(layer, _CONTRACTION).vectors["contraction"]
    if constants.values is None or constants.output is None:
        return {"contraction": contractions.max()}
    plain, sharp = attention_bound(
        contractions.to(constants.values), constants.values, constants.output
    )
    return {"contraction": contractions.max(), "bound": plain, "sharp": sharp, "factor": plain}


def feedforward_bound(layer: Layer, constants: Constants, entered: Hidden) -> Tensor:
    """Return the bound of a feed-forward layer on what goes through it, or of its weights alone.

    Source: pangu23, Theorems 3 and 7; on what goes through it: Own.
    """
    if constants.form is None or constants.form.has_constant or layer.block is None:
        return constants.size
    inner, gate = constants.form.inside(layer.block, entered)
    return range_bound(inner, gate, constants.form.activation, constants.norms)


def _floor(sublayer: Sublayer, found: Mapping[str, float]) -> float:
    """Return the gain that rounding alone can make, for tokens that are `entered` apart."""
    tokens, width = sublayer.entered.shape
    reach = found["weights"] * sqrt(tokens) * found["longest"]
    slack = rounding(sublayer.left.dtype, 2 * width + tokens)
    return slack * (reach + found["size"]) / found["entered"]


def _ratio(above: float, below: float) -> float:
    return above / below if below > 0 else nan


def _row(layer: Layer, name: str, run: MeasureContext) -> Row:
    sublayer = layer.sublayers[name]
    constants = _constants(layer, name, run)
    attends = name == "attention"
    size = constants.size if attends else feedforward_bound(layer, constants, sublayer.entered)
    limits = _theorem(layer, constants, exact=False) if attends else {"bound": size}
    found = read_numbers(_lengths(sublayer) | {"weights": size} | limits)
    measured = _ratio(found["left"], found["entered"])
    slack = _floor(sublayer, found) if found["entered"] > 0 else inf
    limit = "sharp" if attends else "bound"
    violated = measured > found.get(limit, nan) + slack
    if violated and attends and len(sublayer.entered) <= DENSE_TOKENS:
        # Before a theorem is accused, its constant is computed without Lanczos.
        found |= read_numbers(_theorem(layer, constants, exact=True))
        violated = measured > found["sharp"] + slack
    columns = {key: found.get(key, nan) for key in ("bound", "sharp", "factor", "contraction")}
    return {
        "sequence": layer.sequence,
        "layer": layer.layer,
        "sublayer": name,
        "measured": measured,
        **columns,
        "ranged": not attends and constants.form is not None and not constants.form.has_constant,
        "tightness": _ratio(columns["bound"], measured),
        "violated": violated,
    }


def _lengths(sublayer: Sublayer) -> dict[str, Tensor]:
    """Return how far apart tokens are before and behind a sublayer, and how long they are."""
    entered, left = sublayer.entered, sublayer.left
    return {
        "entered": _diversity(entered),
        "left": _diversity(left),
        "longest": widen(entered).norm(dim=1).max(),
        "size": widen(left).norm(),
    }


def _diversity(h: Hidden) -> Tensor:
    return diversity(h) if len(h) > 1 else h.new_tensor(nan)


def read(layer: Layer, run: MeasureContext) -> Iterator[Row]:
    """Read one row for attention and one for feed-forward, where the block exposes them.

    Source: Own.
    """
    for name in _CONSTANTS:
        if name in layer.sublayers:
            yield _row(layer, name, run)


MEASURES = (
    Measure(
        name="gain",
        title="Gain of diversity in attention and feed-forward",
        unit="none",
        source="pangu23, Lemma 1, Theorems 2, 3 and 7; gated feed-forward: Own",
        about=(
            "By which factor a sublayer changes the distance of its tokens from being all alike, "
            "measured on its own input and output, without the residual connection. "
            "Below 1 the sublayer brings tokens closer; the bound says what the weights and the "
            "attention matrix allow, and a large bound alone says nothing about what happens."
        ),
        equation=(
            "measured = d_M(out) / d_M(in);  attention: <= sqrt(lambda H) s v1, "
            "sqrt(lambda) = max_h ||(I - ee^T) A_h||_2;  feed-forward: <= L s v2, gated: "
            "<= v2 (max |act(g)| s + L max |mean v| s_g) for act(g) * v, g and v as they are here"
        ),
        per=("sequence", "layer", "sublayer"),
        columns={
            "measured": "distance from equal tokens behind the sublayer over that before it",
            "bound": "what Theorem 2 (attention), 3 or 7 (feed-forward) allows; where it is gated, "
            "what its weights allow on the range that the gate takes in this text",
            "sharp": "Theorem 2 with each head's own constants, sqrt(sum lambda_h s_h^2) v1",
            "factor": "sqrt(lambda H) s v1 of attention, which the source calls usually below 1",
            "contraction": "sqrt(lambda): the largest over heads of ||(I - ee^T) A_h||_2",
            "ranged": "whether the bound is one on the range of this text, which no theorem has",
            "tightness": "bound over measured; far above 1 the bound says little",
            "violated": "whether a bound is exceeded by more than rounding explains",
        },
        plot=("measured", "contraction", "tightness"),
        roles={"ranged": "flag", "violated": "flag"},
        better=None,
        needs=frozenset({"stream", "attention", "weights"}),
        read=read,
        heads=lambda options: _CONTRACTION,
        bound=(
            Bound(
                column="measured",
                limit="bound",
                side="upper",
                source="pangu23, Theorems 2, 3 and 7; gated: Own",
            ),
            Bound(column="measured", limit="sharp", side="upper", source="pangu23, Lemmas 1 and 2"),
        ),
    ),
)
