"""The bilinear form x_i^T W_q^T W_k x_j of every head, and what it allows the scores to be.

W_q and W_k of a head have d_h rows, so the d x d form is never built: with W_q^T = Q_q R_q and
W_k^T = Q_k R_k its singular values are those of the d_h x d_h matrix R_q R_k^T. With the norm in
front of attention the largest possible score follows from the weights alone, and from it an upper
bound on the spectral norm of the attention matrix. For real models that bound is close to sqrt(n):
heads are ranked by the measured norm, not by it.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from layerlab.errors import NotApplicable, UserError
from layerlab.known_options import measure_options
from layerlab.measures.measure import Bound, Measure, MeasureContext, Row
from layerlab.measures.support.centring import precise
from layerlab.observe.architecture.head_weights import SCALED, STRETCHED, HeadWeights
from layerlab.observe.tracing.device_schedule import map_host, read_host, read_lists
from layerlab.shapes import HeadVector, Matrix

QueryWeights = Float[Tensor, "head head_width width"]
KeyWeights = Float[Tensor, "kv_head head_width width"]
HeadSpectra = Float[Tensor, "head rank"]

# What is read of a layer's weights.
PARTS = (
    *("query", "key", "query_bias", "key_bias", "gain", "shift"),
    *("query_gain", "key_gain", "query_shift", "key_shift"),
)

BIASED = "biases or a clip stand between its weights and its queries and keys"
NORMED = (
    "a norm stands on the query and the key (QK-norm), so W_q^T W_k is not the form of the scores"
)
FREE = "no norm in front of attention bounds what it reads"


class PartNorms(dict[str, HeadVector]):
    """Spectral norms of every head's query or key matrix, computed once each is asked for."""

    def __init__(self, weights: HeadWeights) -> None:
        super().__init__()
        self.weights = weights

    def __missing__(self, part: str) -> HeadVector:
        self[part] = _norm(precise(getattr(self.weights, part)))
        return self[part]


def factored_spectrum(query: QueryWeights, key: KeyWeights) -> HeadSpectra:
    """Return the singular values of every head's W_k^T W_q, largest first, by its factors.

    sigma(W_k^T W_q) = sigma(R_k R_q^T)   with   W_q^T = Q_q R_q,  W_k^T = Q_k R_k

    There are at most d_h that are not 0. Query head h is paired with key head h // group.

    Source: golub13.
    Unit: that of W_q times that of W_k.

    Raises:
        UserError: the query heads are not a multiple of the key heads.

    Example:
        >>> factored_spectrum(torch.eye(2, 5)[None], 3 * torch.eye(2, 5)[None]).tolist()
        [[3.0, 3.0]]
    """
    if query.shape[0] % key.shape[0]:
        raise UserError(
            f"{query.shape[0]} query heads cannot share {key.shape[0]} key heads; "
            "the first must be a multiple of the second"
        )
    return _spectra_on_host(query, key, query.device)


def _spectra_on_host(query: QueryWeights, key: KeyWeights, device: torch.device) -> HeadSpectra:
    """Return the spectra of weights on the host that came from a device."""
    shared = query.split(query.shape[0] // key.shape[0])
    return torch.cat(list(map_host(_group_spectrum, zip(shared, key, strict=True), device)))


def _group_spectrum(given: tuple[QueryWeights, Matrix]) -> HeadSpectra:
    """Return the spectra of the query heads that share one key head."""
    query, key = given
    form = _triangle(key) @ torch.stack([_triangle(head) for head in query]).mT
    finite = form.isfinite().all(-1).all(-1)
    values = torch.linalg.svdvals(torch.where(finite[:, None, None], form, 0.0))
    return torch.where(finite[:, None], values, torch.nan)


def _triangle(weight: Float[Tensor, "row width"]) -> Float[Tensor, "row rank"]:
    """Return R of W^T = Q R; one head at a time stays in the cache of a processor."""
    return torch.linalg.qr(weight.mT, mode="r").R


def score_bound(
    weights: HeadWeights, *, differences: bool = False, norms: PartNorms | None = None
) -> HeadVector:
    """Return the largest score that a head can give, whatever its input.

    M = [(Gamma sqrt(d) + |beta|) sigma_q + |b_q|] [(Gamma sqrt(d) + |beta|) sigma_k + |b_k|] s

    Gamma is the largest |gain| of the norm in front, beta its shift, s the module's own scaling;
    m^2 on top for a RoPE that stretches by m, and no more than the softcap. QK-norm over N features
    (d_h, or all heads together) of gain g and shift c makes a factor max|g| sqrt(N) + |c| instead.

    With `differences`, M_s: enough for the entries of the attention matrix, because beta and b_k
    shift the scores of a row alike. Its second factor is Gamma sqrt(d) sigma_k, without RoPE only.

    Source: spectral25, equations 11 to 13; henry20 for QK-norm.
    Differs: spectral25 scales by sqrt(d) and leaves out beta and the biases.
    Unit: none.

    Args:
        norms: of the query and key weights, where they are known.
    """
    sharp = differences and weights.rotary is None
    norms = PartNorms(weights) if norms is None else norms
    query, key = _reach(weights, "query", norms), _reach(weights, "key", norms, sharp=sharp)
    stretch = max(1.0, (weights.rotary or 1.0) ** 2)
    group = query.shape[0] // key.shape[0]
    bound = query * key.repeat_interleave(group) * abs(weights.scaling) * stretch
    return bound if weights.softcap is None else bound.clamp_max(weights.softcap)


def _reach(weights: HeadWeights, part: str, norms: PartNorms, *, sharp: bool = False) -> Tensor:
    """Return the largest length of a head's query or key.

    If `sharp`, without what is common to all keys.
    """
    weight = getattr(weights, part)
    gain, shift = (getattr(weights, f"{part}_{name}") for name in ("gain", "shift"))
    if gain is not None:
        return _normed_reach(weight, precise(gain), None if sharp else shift)
    assert weights.gain is not None
    bias = getattr(weights, f"{part}_bias")
    sigma = norms[part]
    length = precise(weights.gain).abs().max() * math.sqrt(weight.shape[-1])
    if sharp:
        return length * sigma
    if weights.shift is not None:
        length = length + precise(weights.shift).norm()
    return length * sigma + (0.0 if bias is None else precise(bias).norm(dim=-1))


def _normed_reach(weight: Tensor, gain: Tensor, shift: Tensor | None) -> Tensor:
    heads, width = weight.shape[:2]
    together = gain.numel() if gain.ndim == 1 else width
    form = (heads, width) if gain.numel() == heads * width else (1, width)
    length = gain.view(form).abs().amax(-1) * math.sqrt(together)
    if shift is not None:
        length = length + precise(shift).view(form).norm(dim=-1)
    return length.expand(heads)


def _norm(weight: Tensor) -> Tensor:
    """Return the spectral norm of every head's matrix.

    A Gram matrix is exact enough for the largest value.
    """
    gram = weight @ weight.mT
    finite = gram.isfinite().all(-1).all(-1)
    largest = torch.linalg.eigvalsh(torch.where(finite[:, None, None], gram, 0.0))[:, -1]
    return torch.where(finite, largest.clamp_min(0).sqrt(), torch.nan)


def prenorm_bound(
    scores: HeadVector, tokens: int, *, window: int | None = None, causal: bool = True
) -> HeadVector:
    """Return an upper bound on the spectral norm of an attention matrix with scores of at most M.

    causal:      sqrt( sum_{i=1}^n 1 / (1 + (i-1) e^{-2M}) )
    window w:    sqrt( max_j sum_{i=j}^{min(n, j+w-1)} 1 / (1 + (min(i, w)-1) e^{-2M}) )
    unmasked:    sqrt( n / (1 + (n-1) e^{-2M}) )

    At M = 0 every row is uniform; for large M it is sqrt(n) (sqrt(w)) and says nothing.

    Source: spectral25, equation 14.
    Differs: spectral25 has the unmasked form alone. It is false for causal attention, where row i
        has i keys: at M = 0 and n = 5 it says 1, and the uniform causal matrix has norm 1.31.
    Unit: none.

    Args:
        scores: M of each head, of `score_bound`.

    Raises:
        UserError: no token.

    Example:
        >>> prenorm_bound(torch.tensor([0.0, 1e9]), 4, causal=False).tolist()
        [1.0, 2.0]
    """
    if tokens < 1:
        raise UserError(f"tokens={tokens} is not a length; give the number of tokens, 1 or more")
    odds = torch.exp(-2 * scores.double())
    if not causal:
        return (tokens / (1 + (tokens - 1) * odds)).sqrt()
    span = tokens if window is None else min(window, tokens)
    return _rows_sum(odds, tokens, span).sqrt()


def _rows_sum(odds: HeadVector, tokens: int, span: int) -> HeadVector:
    """Return the largest sum of a column that rows with min(i, span) keys each allow."""
    rows = torch.arange(1, min(tokens, 2 * span) + 1, dtype=odds.dtype, device=odds.device)
    largest = 1 / (1 + (rows.clamp_max(span) - 1) * odds[:, None])
    sums = torch.nn.functional.pad(largest.cumsum(1), (1, 0))
    return (sums[:, span:] - sums[:, :-span]).amax(1)


def printed_bound(weights: HeadWeights, tokens: int, norms: PartNorms | None = None) -> HeadVector:
    """Return the pre-norm bound as spectral25 prints it.

    No mask, no biases, scores scaled by sqrt(d).

    sqrt( n / (1 + (n-1) e^{-2M}) )   with   M = Gamma^2 sigma_q sigma_k sqrt(d)

    It is refuted for causal attention; here to be compared with.

    Source: spectral25, equation 14.
    Unit: none.
    """
    assert weights.query is not None and weights.key is not None and weights.gain is not None
    size = precise(weights.gain).abs().max() ** 2 * math.sqrt(weights.query.shape[-1])
    norms = PartNorms(weights) if norms is None else norms
    query, key = norms["query"], norms["key"]
    scores = size * query * key.repeat_interleave(len(query) // len(key))
    return prenorm_bound(scores, tokens, causal=False)


def read(weights: HeadWeights, run: MeasureContext) -> Iterator[Row]:
    """Read one row per head; a column without a reading is NaN, and `run.notes` says why.

    Source: spectral25, budzinskiy25.

    Raises:
        NotApplicable: no column has a reading.
    """
    reason = weights.refused.get("query") or weights.refused.get("key")
    if weights.query is None or weights.key is None or reason:
        raise NotApplicable(reason or "its query and key weights were not found")
    host, device = _on_host(weights), weights.query.device
    norms = PartNorms(host)
    columns = read_lists(_form(host, run, norms, device) | _bounds(host, run, norms))
    for head in range(len(weights.query)):
        values = {name: columns[name][head] if name in columns else math.nan for name in COLUMNS}
        yield {"layer": weights.layer, "head": head, **values}


def _on_host(weights: HeadWeights) -> HeadWeights:
    """Return the weights in float64 where they are decomposed, copied all at once."""
    held = {name: tensor for name in PARTS if (tensor := getattr(weights, name)) is not None}
    read: dict[str, Any] = dict(zip(held, read_host(list(held.values())), strict=True))
    return replace(weights, **read)


def _form(
    weights: HeadWeights, run: MeasureContext, norms: PartNorms, device: torch.device
) -> dict[str, Tensor]:
    """Return the columns about W_k^T W_q itself."""
    if weights.query_norm is not None:
        _note(weights, run, ("norm", "smallest", "condition", "abs_norm", "attained"), NORMED)
        return {}
    assert weights.query is not None and weights.key is not None
    query, key = precise(weights.query), precise(weights.key)
    values = _spectra_on_host(query, key, device)
    columns = {
        "norm": values[:, 0],
        "smallest": values[:, -1],
        "condition": values[:, 0] / values[:, -1],
        "abs_norm": _spectra_on_host(query.abs(), key.abs(), device)[:, 0],
    }
    if weights.rotary is not None:
        product = norms["query"] * norms["key"].repeat_interleave(len(query) // len(key))
        columns["rope_bound"] = product * max(1.0, weights.rotary**2)
    changed = (weights.query_bias, weights.key_bias, weights.clip)
    if weights.attained is not None:
        columns["attained"] = weights.attained
    elif reason := weights.refused.get("scores"):
        _note(weights, run, ("attained",), reason)
    elif any(one is not None for one in changed):
        _note(weights, run, ("attained",), BIASED)
    return columns


def _bounds(weights: HeadWeights, run: MeasureContext, norms: PartNorms) -> dict[str, Tensor]:
    """Return the columns that need a norm in front of attention, or on its query and key."""
    names = ("score_bound", "prenorm_bound", "prenorm_printed")
    tokens = run.options.get("tokens") or weights.context
    unknown = weights.refused.get("gain", FREE)
    if weights.gain is None and (weights.query_gain is None or weights.key_gain is None):
        _note(weights, run, names, unknown)
        return {}
    reason = weights.refused.get("scores")
    if reason in (STRETCHED, SCALED):
        _note(weights, run, names, reason)
        return {}
    columns = {"score_bound": score_bound(weights, norms=norms)}
    if reason or not tokens:
        _note(weights, run, names[1:], reason or "the number of tokens is unknown")
    else:
        scores = score_bound(weights, differences=True, norms=norms)
        columns["prenorm_bound"] = prenorm_bound(scores, tokens, window=weights.window)
        if weights.query_norm is None:
            columns["prenorm_printed"] = printed_bound(weights, tokens, norms)
    return columns


def _note(weights: HeadWeights, run: MeasureContext, names: tuple[str, ...], reason: str) -> None:
    remark = f"{', '.join(names)}: not applicable to {{layers}}, because {reason}"
    run.note_layer(names[0], remark, weights.layer)


COLUMNS: Mapping[str, str] = {
    "norm": "largest singular value of W_k^T W_q, of the raw weights",
    "smallest": "its smallest one that can differ from 0, the d_h-th",
    "condition": "norm / smallest; the rank is at most d_h, so a d-th one would always be 0",
    "abs_norm": "norm of |W_k|^T |W_q|: how far rounding errors of the scores can grow",
    "attained": "largest |q_i . k_j| / (|z_i| |z_j|) in the first text, where another measure "
    "reads it; at most norm, under RoPE rope_bound",
    "rope_bound": "upper bound on norm at every distance of two tokens under RoPE, seldom attained",
    "score_bound": "M, the largest score that the weights allow",
    "prenorm_bound": "upper bound on the attention norm from M and the causal mask",
    "prenorm_printed": "that bound as printed in its source, refuted under a causal mask",
}

MEASURES = (
    Measure(
        name="querykey",
        title="Query-key form",
        unit="product of the units of W_q and W_k",
        source="spectral25, budzinskiy25",
        about=(
            "A head scores two tokens by a bilinear form whose matrix is W_k^T W_q. Its norm says "
            "how strongly the head can react, its condition how unevenly."
        ),
        equation="norm = sigma_1(W_k^T W_q), condition = sigma_1 / sigma_{d_h}",
        per=("layer", "head"),
        columns=COLUMNS,
        plot=("norm", "condition", "abs_norm", "attained"),
        limits=("rope_bound", "score_bound", "prenorm_bound", "prenorm_printed"),
        better=None,
        needs=frozenset({"weights"}),
        resumes=True,
        read=read,
        bound=(Bound(column="attained", limit="rope_bound", side="upper", source="su21; Own"),),
        **measure_options("querykey"),
    ),
)
