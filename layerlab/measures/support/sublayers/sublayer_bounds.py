"""Bounds of the gain of a sublayer, from its weights and its attention.

Theorem 2 bounds attention by sqrt(lambda H) s v1, Theorems 3 and 7 a feed-forward layer by L s v2;
a gated one is bounded on the range that its gate takes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from math import nan, sqrt

import torch
from jaxtyping import Float
from torch import Tensor, nn

from layerlab.errors import NotApplicable
from layerlab.measures.support.attention_pass import End, HeadQuantity, read_heads
from layerlab.measures.support.golub_kahan import AnyBatch, SpectralBounds, spectral_bounds
from layerlab.measures.support.lanczos import CentredRitz, Process
from layerlab.measures.support.products import Profile
from layerlab.measures.support.sublayers.activations import Elementwise
from layerlab.measures.support.sublayers.sublayer_forms import (
    FeedForward,
    attention_fit,
    find_underflow,
    is_routed,
    sift_feedforward,
)
from layerlab.observe.architecture.head_weights import HeadWeights
from layerlab.observe.tracing.attention.record import AttentionRecord
from layerlab.observe.tracing.host_steps import Steps, run_steps, together
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
        return read_heads(attended, [CONTRACTION])["contraction"]
    norms = []
    for head in range(attended.heads):
        matrix = attended.weights(slice(head, head + 1), dtype=torch.float64)
        norms.append(torch.linalg.matrix_norm(matrix - matrix.mean(1, keepdim=True), 2))
    return torch.cat(norms)


def _solve(part: AttentionRecord, profile: Profile) -> tuple[Sequence[Process], End]:
    ritz = CentredRitz(profile, part.sums_to_one)
    return (ritz,), lambda: {"contraction": ritz.norm}


CONTRACTION = HeadQuantity(columns=("contraction",), solve=_solve)


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


Build = Callable[[Sequence[Tensor]], Constants]
"""Makes the constants of a sublayer of the norms of its matrices."""


@dataclass(frozen=True, kw_only=True)
class CandidateForm:
    """The form with a bound that a sublayer seems to have.

    Attributes:
        matrices: those whose norms are in the bound.
        confirm: returns what their norms make of it, once nothing speaks against it any more.
    """

    matrices: Sequence[AnyBatch]
    confirm: Steps[Build]


class SublayerConstants:
    """The parts of sublayers' bounds that their weights bring, as far as norms are certified.

    Attributes:
        norms: of the matrices of all of them.
    """

    def __init__(self, forms: Mapping[str, CandidateForm]) -> None:
        self._forms = forms
        self._builds: Sequence[Build] = ()
        self.norms = SpectralBounds([one for form in forms.values() for one in form.matrices])

    def approach(self) -> Steps[None]:
        """Find the norms from below, beside the last checks of the forms: few are refused there."""
        confirmed = together(*(_confirm(form) for form in self._forms.values()))
        self._builds, _ = yield from together(confirmed, self.norms.approach())

    def values(self) -> dict[str, Constants]:
        """Return the constants of each sublayer, or why it has none."""
        norms = iter(self.norms.values())
        return {
            name: build(list(islice(norms, len(form.matrices))))
            for (name, form), build in zip(self._forms.items(), self._builds, strict=True)
        }


def find_constants(layer: Layer, names: Sequence[str]) -> SublayerConstants:
    """Return what the weights of a layer's sublayers bring to their bounds; none is certified yet.

    Source: pangu23, Theorems 2, 3 and 7.
    """

    def find() -> Steps[SublayerConstants]:
        forms = yield from together(*(_check(layer, name) for name in names))
        found = SublayerConstants(dict(zip(names, forms, strict=True)))
        yield from found.approach()
        return found

    return run_steps(find())


def certify_constants(layer: Layer, names: Sequence[str]) -> dict[str, Constants]:
    """Return what the weights of a layer's sublayers bring to their bounds.

    Source: pangu23, Theorems 2, 3 and 7.
    """
    found = find_constants(layer, names)
    run_steps(found.norms.certify())
    return found.values()


def _check(layer: Layer, name: str) -> Steps[CandidateForm]:
    try:
        return (yield from _CHECKS[name](layer, layer.sublayers[name]))
    except NotApplicable as error:
        return CandidateForm(matrices=[], confirm=_give(_refuse(error)))


def _confirm(form: CandidateForm) -> Steps[Build]:
    try:
        return (yield from form.confirm)
    except NotApplicable as error:
        return _refuse(error)


def _refuse(error: NotApplicable) -> Build:
    refused = Constants(refused=str(error))
    return lambda norms: refused


def _give(build: Build) -> Steps[Build]:
    yield from ()
    return build


def check_attention(layer: Layer, sublayer: Sublayer) -> Steps[CandidateForm]:
    """Return the form of attention that Theorem 2 speaks of, once it has been computed again.

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
    fit = yield from attention_fit(attended, weights, sublayer)
    if not fit.holds:
        raise NotApplicable(
            find_underflow(sublayer.left)
            or "its value path is not the linear map of Theorem 2: concat_h(A_h (z W_v + b_v)) W_o "
            f"+ b_o is off its output by {fit.gap:.1e}, and rounding explains {fit.slack:.1e}"
        )
    heads = attended.heads

    def build(norms: Sequence[Tensor]) -> Constants:
        each, output = norms
        values = each.repeat_interleave(heads // len(each))
        return Constants(size=sqrt(heads) * values.max() * output, values=values, output=output)

    joined = weights.output.permute(1, 0, 2).flatten(1)
    return CandidateForm(matrices=[weights.value, joined], confirm=_give(build))


def _missing(weights: HeadWeights | None) -> str:
    if weights is None:
        return "its weights were not found"
    for part in ("value", "output"):
        if part in weights.refused:
            return weights.refused[part]
    return "its value and output weights were not found"


def check_feedforward(layer: Layer, sublayer: Sublayer) -> Steps[CandidateForm]:
    """Return the form of a feed-forward layer that has a bound, as far as a few rows show.

    Source: pangu23, Theorems 3 and 7.

    Raises:
        NotApplicable: it is of no form that has a bound.
    """
    block = layer.block
    if block is None:
        raise NotApplicable("its block was not found")
    sifted = yield from sift_feedforward(block, sublayer)
    if len(sifted.activations) > 1:  # the norms of so many maps would be computed
        sifted = yield from sifted.choose()
    if not sifted.activations:
        raise NotApplicable(_refuse_form(block, sublayer))

    def confirm() -> Steps[Build]:
        form = (yield from sifted.choose()).form
        if form is None:
            raise NotApplicable(_refuse_form(block, sublayer))
        return partial(_build_feedforward, form)

    (names,) = sifted.activations
    return CandidateForm(matrices=[sifted.maps[name].weight for name in names], confirm=confirm())


def _refuse_form(block: nn.Module, sublayer: Sublayer) -> str:
    return MIXED if is_routed(block) else find_underflow(sublayer.left) or OTHER


def _build_feedforward(form: FeedForward, norms: Sequence[Tensor]) -> Constants:
    if not form.has_constant:
        return Constants(form=form, norms=norms)
    size = form.activation.lipschitz * norms[0] * norms[1]
    return Constants(size=size, form=form, norms=norms)


_CHECKS = {"attention": check_attention, "ffn": check_feedforward}


def feedforward_bound(layer: Layer, constants: Constants, entered: Hidden) -> Tensor:
    """Return the bound of a feed-forward layer on what goes through it, or of its weights alone.

    Source: pangu23, Theorems 3 and 7; on what goes through it: Own.
    """
    if constants.form is None or constants.form.has_constant or layer.block is None:
        return constants.size
    inner, gate = constants.form.inside(layer.block, entered)
    return range_bound(inner, gate, constants.form.activation, constants.norms)
