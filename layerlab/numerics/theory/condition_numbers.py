"""Condition numbers of modules: amplified relative errors of input.

Three condition numbers, from a Jacobian J of f at x: normwise ||J||_{p,q} ||x||_p / ||f||_q, mixed
||J D_x||_{inf,q} / ||f||_q and componentwise max_i (|J| |x|)_i / |f_i|, with 0/0 = 0 and x/0 = inf.
Below them the componentwise one of each module in closed form, an upper bound where the docstring
says so. First order: rho_c(f(x'), f(x)) <= k rho_c(x', x), up to squares.
"""

import math
from itertools import product

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from layerlab.errors import UserError
from layerlab.numerics.theory.activations import Entries, activation
from layerlab.numerics.theory.modules import (
    Outputs,
    Sequence,
    TheoryAttention,
    TheoryFFN,
    TheoryNorm,
)
from layerlab.shapes import Features, Matrices

Jacobian = Float[Tensor, "*place out width"]
Conditions = Float[Tensor, "*place"]

SIGNS = 16
"""Columns up to which all sign vectors are tried: 2^15 products."""


def quotient(above: Entries, below: Entries) -> Entries:
    """Return |above| / |below| with 0/0 = 0 and x/0 = inf.

    Source: budzinskiy25, section 3.1.
    """
    return torch.where(above == 0, 0.0, above.abs() / below.abs())


def distance(found: Features, exact: Features) -> Conditions:
    """Return rho_c: the largest |found - exact| / |exact| among the features.

    Source: budzinskiy25, section 3.1.
    """
    return quotient(found - exact, exact).amax(-1)


def induced_norm(matrix: Matrices, p: int | float, q: int | float) -> Conditions:
    """Return ||A||_{p,q} = max ||A x||_q over ||x||_p = 1.

    Exact: the largest column in q for p = 1, the largest row in p/(p-1) for q = inf, the largest
    singular value for 2, 2. For p = inf all sign vectors are tried, and for q = 1 those of A^T: no
    faster way is known.

    Source: budzinskiy25, section 2.1.

    Raises:
        UserError: another pair, or more columns than can be tried.
    """
    if p == 1:
        return torch.linalg.vector_norm(matrix, q, dim=-2).amax(-1)
    if q == math.inf:
        return torch.linalg.vector_norm(matrix, _dual(p), dim=-1).amax(-1)
    if p == q == 2:
        return torch.linalg.matrix_norm(matrix, 2)
    if q == 1:
        return induced_norm(matrix.mT, math.inf, _dual(p))
    if p != math.inf:
        raise UserError(
            f"the norm from p={p} to q={q} is not known exactly; take p=1, q=inf, p=q=2, p=inf or "
            "q=1"
        )
    columns = matrix.shape[-1]
    if columns > SIGNS:
        raise UserError(
            f"the norm from p=inf to q={q} tries all signs, too many for {columns} columns; take "
            f"{SIGNS} or fewer, or q=inf"
        )
    signs = [(1.0, *rest) for rest in product((1.0, -1.0), repeat=columns - 1)]
    images = matrix @ torch.tensor(signs, dtype=matrix.dtype, device=matrix.device).mT
    return torch.linalg.vector_norm(images, q, dim=-2).amax(-1)


def _dual(p: int | float) -> float:
    return math.inf if p == 1 else 1.0 if p == math.inf else p / (p - 1)


def normwise(
    jacobian: Jacobian, x: Features, value: Outputs, p: int | float = 2, q: int | float = 2
) -> Conditions:
    """Return k_{p,q} = ||J||_{p,q} ||x||_p / ||f||_q.

    Source: budzinskiy25, Lemma 3.3.
    """
    size = induced_norm(jacobian, p, q) * torch.linalg.vector_norm(x, p, dim=-1)
    return quotient(size, torch.linalg.vector_norm(value, q, dim=-1))


def mixed(jacobian: Jacobian, x: Features, value: Outputs, q: int | float = math.inf) -> Conditions:
    """Return k_{c,q} = ||J D_x||_{inf,q} / ||f||_q: componentwise before, in norm behind.

    Source: budzinskiy25, Lemma 3.3.
    """
    size = induced_norm(jacobian * x[..., None, :], math.inf, q)
    return quotient(size, torch.linalg.vector_norm(value, q, dim=-1))


def componentwise(jacobian: Jacobian, x: Features, value: Outputs) -> Conditions:
    """Return k_{c,c} = max_i (|J| |x|)_i / |f_i|.

    Source: budzinskiy25, Lemma 3.3.
    """
    reach = (jacobian.abs() @ x.abs()[..., None])[..., 0]
    return quotient(reach, value).amax(-1)


def affine(
    x: Features, weight: Float[Tensor, "out width"], bias: Float[Tensor, " out"] | None = None
) -> Conditions:
    """Return max_i (|W| |x|)_i / |W x + b|_i; without a bias at least 1, and the xi of lm_head.

    Source: budzinskiy25, Lemma 3.4.
    """
    reach = functional.linear(x.abs(), weight.abs())
    return quotient(reach, functional.linear(x, weight, bias)).amax(-1)


def residual(x: Features, added: Features) -> Conditions:
    """Return the cancellation chi = max_i (|x_i| + |a_i|) / |x_i + a_i|, at least 1.

    Also that of word plus position.

    Source: budzinskiy25, Lemma 4.25.
    """
    return quotient(x.abs() + added.abs(), x + added).amax(-1)


def _centring(x: Features, centred: Features) -> Features:
    width = x.shape[-1]
    above = x.abs().sum(-1, keepdim=True) + (width - 2) * x.abs()
    return quotient(above, width * centred)


def norm(x: Features, parts: TheoryNorm) -> Conditions:
    """Return the condition number of an RMS norm, or an upper bound on that of a layer norm.

    RMS, eps = 0: 2 (1 - min x_i^2 / ||x||^2) <= 2, the minimum over entries other than 0.
    RMS: max over those of 1 + (s - 2 x_i^2) / (s + d eps), s = ||x||^2; a gain falls out.
    Layer: max_i |g_i N_i| / |y_i| times
    |c| . |x| / (||c||^2 + d eps) + (||x||_1 + (d-2) |x_i|) / (d |c_i|) < 3 ||x||_inf / ||c||_{-inf}

    Entries of y that are 0 for every x (no gain, or x_i = 0) do not count.

    Source: budzinskiy25, Lemmas 3.6 and 3.8; eps, gain and shift Own.
    Differs: the source takes the minimum over all entries; where one is 0, an identity becomes an
        upper bound.
    """
    width, centred = x.shape[-1], parts.centre(x)
    total = centred.square().sum(-1, keepdim=True) + width * parts.eps
    if parts.kind == "rms":
        found = 1 + (x.square().sum(-1, keepdim=True) - 2 * x.square()) / total
        found = torch.where(x != 0, found, 0.0)
    else:
        both = (centred.abs() * x.abs()).sum(-1, keepdim=True)
        found = quotient(both, total) + _centring(x, centred)
    direction = parts.direction(x)
    scaled = direction if parts.gain is None else direction * parts.gain
    if parts.shift is not None:
        found = torch.where(scaled == 0, 0.0, quotient(scaled * found, parts.value(x)))
    elif parts.gain is not None:
        found = torch.where(parts.gain == 0, 0.0, found)
    return found.amax(-1)


def mlp(x: Features, parts: TheoryFFN) -> Conditions:
    """Return xi_M, an upper bound that also serves rounding.

    Without a gate: max [|W_2| |phi'(z)| (|W_1| |x| + |b_1|) + |b_2|] / |y|, z = W_1 x + b_1; of
    ReLU only the active units count, whose |phi'| is 1.
    With a gate, g = W_g x + b_g and w = W_u x + b_u: max (|W_d| lin + |b_d|) / |y|,
    lin = |phi'(g)| (|W_g| |x| + |b_g|) |w| + |phi(g)| (|W_u| |x| + |b_u|)

    Source: budzinskiy25, Lemma 3.10; other activations and gates Own.
    """
    inner = functional.linear(x, parts.inward, parts.inward_bias)
    reach = _reach(x, parts.inward, parts.inward_bias)
    function = activation(parts.activation)
    if parts.gate is None:
        linear = function.slope(inner).abs() * reach
    else:
        raw = functional.linear(x, parts.gate, parts.gate_bias)
        gated = function.slope(raw).abs() * _reach(x, parts.gate, parts.gate_bias)
        linear = gated * inner.abs() + function.value(raw).abs() * reach
    above = _reach(linear, parts.outward, parts.outward_bias)
    return quotient(above, parts.value(x)).amax(-1)


def _reach(
    x: Features, weight: Float[Tensor, "out width"], bias: Float[Tensor, " out"] | None
) -> Outputs:
    return functional.linear(x.abs(), weight.abs(), None if bias is None else bias.abs())


def softmax(s: Features) -> Conditions:
    """Return max_i (1 - 2 p_i) |s_i| + p . |s| <= 2 ||s||_inf.

    Source: budzinskiy25, Lemma 3.13.
    """
    chance = torch.softmax(s, -1)
    mean = (chance * s.abs()).sum(-1, keepdim=True)
    return ((1 - 2 * chance) * s.abs() + mean).amax(-1)


def score_numerator(
    x: Sequence, parts: TheoryAttention, index: int = 0
) -> Float[Tensor, "*place token token"]:
    """Return the relative errors of a score, for query t (row) and key i (column) of one head.

    s (|x_i|^T |W_k^T q_t| + |k_i^T W_q| |x_t|)

    Over |s_{ti}| it is the condition of a score (an upper bound for i = t). Queries and keys are
    those with biases; rotary positions turn q_t and k_i against each other.

    Source: budzinskiy25, Lemma 3.12; biases and rotary positions Own.
    """
    head, size = parts.head(index), x.abs()
    query, key = parts.queries(x, index), parts.keys(x, index)
    if parts.cosine is None or parts.sine is None:
        keyed = (query @ head.key).abs() @ size.mT
        return abs(parts.scale) * (keyed + size @ (key @ head.query).abs().mT)
    rows = list[Tensor]()
    for token in range(x.shape[-2]):
        back = _turn_back(query[..., token, None, :].expand_as(key), parts, slice(None))
        own = _turn_back(key, parts, slice(token, token + 1))
        keyed = ((back @ head.key).abs() * size).sum(-1)
        queried = ((own @ head.query).abs() * size[..., token, None, :]).sum(-1)
        rows.append(keyed + queried)
    return abs(parts.scale) * torch.stack(rows, -2)


def _turn_back(x: Tensor, parts: TheoryAttention, tokens: slice) -> Tensor:
    """Return R^T x: the transpose of x cos + turned(x) sin."""
    assert parts.cosine is not None and parts.sine is not None
    first, second = (x * parts.sine[tokens]).chunk(2, -1)
    return x * parts.cosine[tokens] + torch.cat([second, -first], -1)


def scores(x: Sequence, parts: TheoryAttention, index: int = 0) -> Float[Tensor, "*place token"]:
    """Return the largest condition of the scores of each query: `score_numerator` over |s|.

    An upper bound; equality unless the token's score with itself attains it.

    Source: budzinskiy25, Lemma 3.12.
    """
    found = quotient(score_numerator(x, parts, index), parts.scores(x, index))
    return found.masked_fill(~parts.mask(x), 0.0).amax(-1)


def cancellation(x: Sequence, parts: TheoryAttention) -> Float[Tensor, "*place token"]:
    """Return xi_A: max [|W_O| stack_h ((|W_v| |X| + |b_v|) p_h) + |b_O|] / |y|, at least 1.

    Source: budzinskiy25, Lemma 3.14; heads and projection Own.
    """
    sides = list[Tensor]()
    for index in range(parts.heads):
        head = parts.head(index)
        sides.append(parts.weights(x, index) @ _reach(x, head.value, head.value_bias))
    above, joined = torch.cat(sides, -1), parts.joined_output()
    if joined is not None:
        above = _reach(above, joined, parts.output_bias)
    return quotient(above, parts.value_of(x)).amax(-1)


def attention(x: Sequence, parts: TheoryAttention) -> Float[Tensor, "*place token"]:
    """Return the upper bound xi_A (1 + 2 max num).

    num is that of `score_numerator` over all heads and allowed keys.

    Source: Own, sharper than `attention_uniform`.
    """
    largest = torch.zeros_like(x[..., 0])
    for index in range(parts.heads):
        found = score_numerator(x, parts, index).masked_fill(~parts.mask(x), 0.0)
        largest = torch.maximum(largest, found.amax(-1))
    return cancellation(x, parts) * (1 + 2 * largest)


def attention_uniform(x: Sequence, parts: TheoryAttention) -> Float[Tensor, "*place token"]:
    """Return the upper bound xi_A (1 + 4 s max_h ||W_k^T W_q|| max_i ||x_i||^2).

    It holds without biases and RoPE.

    Behind a norm ||x_i|| is at most sqrt(d) max |gain| + ||shift||.

    Source: budzinskiy25, Lemma 3.14.

    Raises:
        UserError: biases on queries or keys, or rotary positions.
    """
    if parts.cosine is not None or parts.query_bias is not None or parts.key_bias is not None:
        raise UserError(
            "the uniform bound knows no biases and no rotary positions; take attention(x, parts)"
        )
    largest = x.square().sum(-1).amax(-1, keepdim=True)
    factor = 4 * abs(parts.scale) * max(map(float, form_norms(parts))) * largest
    return cancellation(x, parts) * (1 + factor)


def form_norms(parts: TheoryAttention) -> Float[Tensor, " head"]:
    """Return sigma_max(W_k^T W_q) of every head, by way of its head_width x head_width factors.

    Source: Own.
    """
    heads = map(parts.head, range(parts.heads))
    return torch.stack([product_singular_values(head.key, head.query)[0] for head in heads])


def product_singular_values(
    left: Float[Tensor, "inner width"], right: Float[Tensor, "inner width"]
) -> Float[Tensor, " rank"]:
    """Return the singular values of left^T right that can differ from 0, largest first.

    Source: golub13.
    """
    first = torch.linalg.qr(left.mT, mode="r").R
    second = torch.linalg.qr(right.mT, mode="r").R
    return torch.linalg.svdvals(first @ second.mT)
