"""Rounding-error bounds of the result of one module: absolute, for every entry.

Each function takes the exact input, the weights and the units of the arithmetic, and returns an
upper bound on |computed - exact| of the shape of the result. `error`, a bound on the input's own
error, is carried through, so that bounds chain through a model. In full arithmetic they are bounds
(up to the float64 in which they are evaluated), with `arithmetic.linear()` what is left of them for
small units. `relative` turns them into rho_c; at 1 or above a bound leaves no digit: it is vacuous.
Attention is in `heads.py`, whole blocks in `depth.py`.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from layerlab.numerics.theory.activations import Entries, SelfGatedActivation, activation
from layerlab.numerics.theory.modules import Outputs, TheoryFFN, TheoryNorm
from layerlab.numerics.theory.roundoff_model import Arithmetic, TermCount
from layerlab.shapes import Features

Weight = Float[Tensor, "out width"]
Bias = Float[Tensor, " out"]


def relative(error: Features, exact: Features) -> Float[Tensor, "*place"]:
    """Return rho_c of each token: the largest |error| / |exact|, with 0/0 = 0 and x/0 = inf.

    Source: budzinskiy25, section 3.1.
    Unit: none; times 2^t it is in units of the last place or so.
    """
    return torch.where(error == 0, 0.0, error.abs() / exact.abs()).amax(-1)


def affine(
    x: Features,
    weight: Weight,
    arithmetic: Arithmetic,
    bias: Bias | None = None,
    error: Features | None = None,
    terms: TermCount | None = None,
) -> Outputs:
    """Bound the error of W x + b, summed in any order, the bias last.

    (d u + u) |W| |x| + u |b| + |W| error,   d u = u_product + (d-1) u_sum

    without a bias d u |W| |x|. The last layer (lm_head, tied or not) is this one.

    Source: budzinskiy25, Lemma 4.3; units by operation Own.

    Args:
        terms: how many of the d products can differ from 0, if less: adding 0 is exact.
    """
    count = torch.as_tensor(x.shape[-1] if terms is None else terms, dtype=x.dtype, device=x.device)
    counts = {"product": count.clamp_max(1), "sum": (count - 1).clamp_min(0)}
    own = {"sum": counts["sum"] + 1, "product": counts["product"]} if bias is not None else counts
    reach = functional.linear(_larger(x, error, arithmetic), weight.abs())
    found = arithmetic.growth(**own, store=1)[..., None] * reach
    if error is not None:
        found = found + functional.linear(error, weight.abs())
    if bias is not None:
        found = found + arithmetic.growth(sum=1, store=1) * bias.abs()
    return found


def _larger(x: Entries, error: Entries | None, arithmetic: Arithmetic) -> Entries:
    """Return the largest that the computed input can be; in first order the exact one."""
    return x.abs() if error is None else arithmetic.reach(x.abs(), error)


def residual(
    x: Features,
    added: Features,
    arithmetic: Arithmetic,
    error: Features | None = None,
    added_error: Features | None = None,
) -> Features:
    """Bound the error of x + added: u |x + added| + both errors.

    Relative to the sum it is at most chi max(rho_x, rho_added) + u, with chi of `conditioning`.

    Source: budzinskiy25, Lemma 4.25.
    """
    nothing = torch.zeros_like(x)
    came = (nothing if error is None else error) + (nothing if added_error is None else added_error)
    return came + arithmetic.growth(residual=1) * _larger(x + added, came, arithmetic)


def centring(x: Features, arithmetic: Arithmetic, error: Features | None = None) -> Features:
    """Bound the error of c = x - mean(x) e.

    u (|c_i| + ||x||_1) + (||error||_1 + (d-2) error_i) / d

    Relative: (1 + ||x||_1 / ||c||_{-inf}) u, without end as entries come close to their mean.

    Source: budzinskiy25, Lemma 4.10.
    """
    width = x.shape[-1]
    came = torch.zeros_like(x)
    if error is not None:
        came = (error.sum(-1, keepdim=True) + (width - 2) * error) / width
    size = _larger(x, error, arithmetic).sum(-1, keepdim=True) / width
    mean = arithmetic.growth(norm=width) * size
    centred = (x - x.mean(-1, keepdim=True)).abs()
    last = arithmetic.reach(centred, came + mean)
    return came + mean + arithmetic.growth(norm=1) * last


def norm(
    x: Features, parts: TheoryNorm, arithmetic: Arithmetic, error: Features | None = None
) -> Features:
    """Bound the error of an RMS or a layer norm with eps, gain and shift.

    RMS: (d/2 + 3) u |y|, one u more with a gain, `extra` more as the norm says; the input's error
    comes through |J| error, at most twice its relative size. d/2 is gamma_d under a square root.
    Layer: the same behind `centring`, whose relative error counts twice; the shift one u more.
    A normed row is never longer than sqrt(d), which caps the bound in full arithmetic. It is inf
    in first order where the norm divides by 0 an input that is not exact.

    Source: budzinskiy25, Lemmas 4.6 and 4.11, Corollaries 4.9 and 4.12; eps, gain, shift and
    mixed units Own.
    Differs: its constant for the layer norm is unreadable; here |J| replaces the factor 2.
    """
    width = x.shape[-1]
    if parts.kind == "layer":
        error = centring(x, arithmetic, error)
    found = parts.direction(x).abs()
    came = torch.zeros_like(x) if error is None else _scale(x, parts, error, arithmetic)
    inside = arithmetic.growth(norm=width / 2 + 3 + parts.extra, constant=0 if parts.eps else 1)
    wrong = came + inside * arithmetic.reach(found, came)
    if parts.gain is not None:
        gain = parts.gain.abs()
        own = arithmetic.growth(gain=1 + parts.offset)
        wrong, found = gain * (wrong + own * arithmetic.reach(found, wrong)), gain * found
    if parts.shift is not None:
        found = parts.value(x).abs()
        wrong = wrong + arithmetic.growth(gain=1) * arithmetic.reach(found, wrong)
    return wrong + arithmetic.growth(store=1) * arithmetic.reach(found, wrong)


def _scale(x: Features, parts: TheoryNorm, error: Features, arithmetic: Arithmetic) -> Features:
    """Bound |c'/r(c') - c/r(c)| for c' within `error` of the centred features c."""
    radius = parts.radius(parts.centre(x))
    part = error / torch.where(radius > 0, radius, 1.0)
    along = parts.direction(x).abs()
    if arithmetic.first_order:
        width = x.shape[-1]
        share = (along * part).sum(-1, keepdim=True) / width
        found = part * (1 - 2 * along.square() / width) + along * share
        return torch.where((radius > 0) | (error == 0), found, torch.inf)
    moved = (error > 0).any(-1, keepdim=True) * x.shape[-1] ** 0.5
    return torch.where(radius > 0, torch.maximum(*_extremes(along, part)), moved)


def _extremes(along: Features, part: Features) -> tuple[Features, Features]:
    """Return how far sqrt(d) a_i / sqrt(a_i^2 + rest) can rise and fall from a_i, exactly.

    It rises with a_i and falls with the rest, which holds eps and all other entries.
    """
    width = along.shape[-1]
    root, least = width**0.5, torch.minimum(part, along)
    rest = (width - along.square()).clamp_min(0)
    more = part * (2 * along + part)
    smaller = sums_of_others(least * (2 * along - least)).minimum(rest)
    larger = sums_of_others(more)
    top, bottom = along + part, along - part
    length = (top.square() + (rest - smaller)).sqrt()
    rise = _over(more * rest + along.square() * smaller, length * (top * root + along * length))
    length = (bottom.square() + rest + larger).sqrt()
    lost = part * (2 * along - part) * rest + along.square() * larger
    fall = _over(lost, length * (along * length + bottom * root))
    turned = along - root * _over(bottom, (bottom.square() + (rest - smaller)).sqrt())
    return rise, torch.where(bottom > 0, fall, turned)


def sums_of_others(x: Features) -> Features:
    """Return sum_{j != i} x_j for every i.

    Without the cancellation of taking x_i away from the sum.

    Source: Own.
    """
    nothing = torch.zeros_like(x[..., :1])
    before = torch.cat([nothing, x.cumsum(-1)[..., :-1]], -1)
    behind = torch.cat([nothing, x.flip(-1).cumsum(-1)[..., :-1]], -1).flip(-1)
    return before + behind


def _over(above: Features, below: Features) -> Features:
    """Return a quotient in which 0/0 is 0."""
    return torch.where(above == 0, 0.0, above / torch.where(above == 0, 1.0, below))


def elementwise(
    z: Features, name: str, arithmetic: Arithmetic, error: Features | None = None
) -> Features:
    """Bound the error of an activation.

    Its own formula's rounding, and the input's error through its slope.

    In full arithmetic the latter is the smaller of L error and |phi'| error + sup|phi''| error^2/2;
    for ReLU it is exact. For GELU a library's kernel may be worse than the formula: 6 u |z| covers
    the float32 one of torch.

    Source: Own.
    """
    function = activation(name)
    came = torch.zeros_like(z) if error is None else _through(z, name, error, arithmetic)
    own = function.rounding(z, arithmetic)
    if error is not None and not arithmetic.first_order and name != "relu":
        own = own + _drift(function, error, arithmetic)
    exact = function.value(z).abs()
    wrong = came + own
    return wrong + arithmetic.growth(store=1) * arithmetic.reach(exact, wrong)


def _through(z: Features, name: str, error: Features, arithmetic: Arithmetic) -> Features:
    function = activation(name)
    if name == "relu":
        return (error + z.clamp_max(0)).clamp_min(0)
    tangent = function.slope(z).abs() * error
    if arithmetic.first_order:
        return tangent
    curved = tangent + function.curvature / 2 * error.square()
    return torch.minimum(function.lipschitz * error, curved)


def _drift(function: SelfGatedActivation, error: Features, arithmetic: Arithmetic) -> Features:
    """Return how much more the formula may round within `error` of z.

    No row has a slope above 20 u.
    """
    return 2 * arithmetic.growth(activation=10) * function.lipschitz * error


def mlp(
    x: Features, parts: TheoryFFN, arithmetic: Arithmetic, error: Features | None = None
) -> Outputs:
    """Bound the error of outward(act(inward x)), or gated, outward(act(gate x) * inward x).

    ReLU, where rounding changes no sign: xi_M (d + |Omega| + 2) u |y|. Omega holds the units that
    rounding may leave above 0; the others are 0 and cost nothing.
    With a gate: u |W_d| (d lin + (D + c + 1) |h|), lin of `conditioning.mlp`.

    Source: budzinskiy25, Lemma 4.14, Corollary 4.16; other activations and gates Own.
    Differs: no sign need be settled; where it is, |Omega| is that of the source.
    """
    inner = functional.linear(x, parts.inward, parts.inward_bias)
    moved = affine(x, parts.inward, arithmetic, parts.inward_bias, error)
    terms = None
    if parts.gate is None:
        wrong = elementwise(inner, parts.activation, arithmetic, moved)
        if parts.activation == "relu":
            terms = (inner + moved > 0).sum(-1)
    else:
        raw = functional.linear(x, parts.gate, parts.gate_bias)
        raw_moved = affine(x, parts.gate, arithmetic, parts.gate_bias, error)
        gate_moved = elementwise(raw, parts.activation, arithmetic, raw_moved)
        gate = activation(parts.activation).value(raw)
        wrong = _bound_product((gate, gate_moved), (inner, moved), arithmetic)
    hidden = parts.hidden_units(x)
    return affine(hidden, parts.outward, arithmetic, parts.outward_bias, wrong, terms)


def _bound_product(
    left: tuple[Features, Features], right: tuple[Features, Features], arithmetic: Arithmetic
) -> Features:
    """Bound the error of the product of two values with their errors."""
    (one, one_wrong), (other, other_wrong) = left, right
    came = one.abs() * other_wrong + other.abs() * one_wrong
    came = arithmetic.reach(came, one_wrong * other_wrong)
    exact = (one * other).abs()
    return came + arithmetic.growth(gate=1) * arithmetic.reach(exact, came)
