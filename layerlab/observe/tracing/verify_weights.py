"""Whether the weights that were cut into heads give what a forward pass showed.

`project` reads a layout from a table; here a traced layer confirms it, row by row, within the
rounding errors of the model's own precision. What does not agree is refused with the reason.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from layerlab.observe.architecture.head_weights import HeadWeights
from layerlab.observe.tracing.attention.record import AttentionRecord
from layerlab.shapes import Hidden

DISCRIMINATOR = 2.0**-4
"""A wrong cut errs by the size of the vector; rounding, even of bfloat16, stays far below this."""

ENTRIES = 2**20
"""Scores that are held at once while it is read what they attain."""

FIELDS: Mapping[str, tuple[str, ...]] = {
    "query": ("query", "query_bias"),
    "key": ("key", "key_bias"),
    "value": ("value", "value_bias"),
    "output": ("output", "output_bias"),
    "gain": ("gain", "shift", "norm"),
    "scores": (),
}


def verify_weights(
    weights: HeadWeights,
    attended: AttentionRecord,
    entered: Hidden,
    left: Float[Tensor, "token written"] | None = None,
    start: int | None = 0,
) -> HeadWeights:
    """Drop from the weights what the trace contradicts, and add what it showed beside them.

    That is the window, the softcap, and how much of the query-key form its tokens attained.

    Args:
        weights: of `project`.
        attended: what the layer multiplied.
        entered: the input of the attention module on the same sequence.
        left: the output of the attention module; without it the output weights stay unchecked.
        start: position of the first token, None where it is not known.
    """
    if attended.window is not None or attended.softcap is not None:
        weights = replace(
            weights,
            window=attended.window if attended.window is not None else weights.window,
            softcap=attended.softcap if attended.softcap is not None else weights.softcap,
        )
    found = faults(weights, attended, entered, left, start)
    gone: dict[str, Any] = {field: None for part in found for field in FIELDS[part]}
    gone["attained"] = None if found else _find_attained(weights, attended, entered)
    return replace(weights, refused={**found, **weights.refused}, **gone)


def _find_attained(
    weights: HeadWeights, attended: AttentionRecord, entered: Hidden
) -> Tensor | None:
    """Return the largest |q_i . k_j| / (|z_i| |z_j|) of each head, over all rows.

    Keys are those that a row may use. A token without features attains nothing. None where q and k
    are not the weights' alone: behind biases, norms, a clip, or in a score.
    """
    added = (weights.query_bias, weights.key_bias, weights.query_norm, weights.clip)
    if any(one is not None for one in added) or weights.refused.get("scores"):
        return None
    if weights.query is None or weights.key is None:
        return None
    shares = _share_sizes(attended, entered)
    count = max(1, ENTRIES // attended.keys)
    found = []
    for start in range(0, attended.tokens, count):
        rows = slice(start, start + count)
        forbidden = ~attended.allowed_keys(rows=rows)
        for head in range(attended.heads):
            scores = shares.logits(slice(head, head + 1), rows)
            scores.masked_fill_(
                forbidden[head : head + 1] if len(forbidden) > 1 else forbidden, 0.0
            )
            found.append(torch.stack(scores.aminmax()).abs().amax())
    largest = torch.stack(found).view(-1, attended.heads).amax(0)
    return largest / abs(weights.scaling)


def _share_sizes(attended: AttentionRecord, entered: Hidden) -> AttentionRecord:
    """Return a record whose scores are those of a layer's input at norm 1."""
    sizes = entered.float().norm(dim=-1).to(attended.device)
    sizes = sizes.masked_fill(sizes == 0, torch.inf)[:, None]
    if attended.scores is not None:
        return replace(attended, scores=attended.scores.float() / sizes / sizes.T)
    assert attended.query is not None and attended.key is not None
    return replace(attended, query=attended.query / sizes, key=attended.key / sizes)


def faults(
    weights: HeadWeights,
    attended: AttentionRecord,
    entered: Hidden,
    left: Float[Tensor, "token written"] | None = None,
    start: int | None = 0,
) -> dict[str, str]:
    """Return what the trace contradicts, and how.

    Without RoPE, q and k must agree entry by entry. RoPE turns them, but not at position 0, and it
    keeps |q_i| and q_i . k_i at every position i. A norm on q and k is checked up to its scale.
    """
    rows = sorted({0, attended.tokens // 2, attended.tokens - 1})
    found: dict[str, str] = {}
    if len(entered) != attended.tokens:
        reason = f"attention read {attended.tokens} tokens, but its input has {len(entered)}"
        return {part: reason for part in FIELDS if getattr(weights, part, None) is not None}
    z = entered[rows].cpu().double()
    if not _is_normed(weights, z, _precision(entered.dtype) / 2):
        found["gain"] = "attention's input did not come from the norm that was found in front of it"
    if weights.query is not None and weights.key is not None:
        seen = _seen_scores if attended.query is None else _seen_factors
        found |= seen(weights, attended, z, rows, start)
    if weights.value is not None and attended.value is not None:
        value, error = _heads(weights.value, weights.value_bias, z, weights.clip, entered.dtype)
        value, error = (_share(x, len(attended.value)) for x in (value, error))
        if not _within(attended.value[:, rows], value, error):
            found["value"] = "W_v z + b_v is not the value that attention used"
    found |= _seen_rows(weights, attended, rows)
    if left is not None and weights.output is not None and weights.value is not None:
        if "value" not in found and not _gives(weights, attended, entered, left, rows):
            found["output"] = "sum_h W_o,h A_h v_h is not what attention gave"
    return found


def _precision(dtype: torch.dtype) -> float:
    """Return the machine epsilon, of float32 at best: norms and rotary tables stay in float32."""
    return max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)


def _is_normed(weights: HeadWeights, z: Tensor, roundoff: float) -> bool:
    """Check that z = gain * x / rms(x) + shift is possible: rms((z - shift) / gain) <= 1."""
    if weights.gain is None:
        return True
    gain = weights.gain.to(z)
    shift = torch.zeros_like(gain) if weights.shift is None else weights.shift.to(z)
    live = gain.abs() > 0
    x = torch.where(live, (z - shift) / torch.where(live, gain, 1.0), 0.0)
    error = 8 * roundoff * (z.abs() + shift.abs()) / gain.abs().clamp_min(torch.finfo().tiny)
    error = torch.where(live, error, 0.0)
    limit = 1 + error.square().mean(-1).sqrt() + 64 * roundoff
    flat = bool((x.mean(-1).abs() <= error.mean(-1) + 64 * roundoff).all())
    small = bool((x.square().mean(-1).sqrt() <= limit).all())
    return small and (weights.norm != "layer" or flat or not bool(live.all()))


def _heads(
    weight: Tensor, bias: Tensor | None, z: Tensor, clip: float | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return w z + b per head, and how far rounding may have moved the model's own result.

    |error| <= (2 u + 2 width u_32) (|W| |z| + |b|), u of the model and u_32 of the accumulator.
    """
    weight = weight.to(z)
    value = torch.einsum("hew,nw->hne", weight, z)
    size = torch.einsum("hew,nw->hne", weight.abs(), z.abs())
    if bias is not None:
        value = value + bias.to(z)[:, None]
        size = size + bias.to(z).abs()[:, None]
    accumulator = torch.finfo(torch.promote_types(dtype, torch.float32)).eps / 2
    unit = 2 * _precision(dtype) + 2 * (weight.shape[-1] + 2) * accumulator
    return (value if clip is None else value.clamp(-clip, clip)), unit * size


def _within(seen: Tensor, expected: Tensor, error: Tensor) -> bool:
    """Check that finite entries agree within the error; broken weights are not a wrong cut."""
    if seen.shape != expected.shape:
        return False
    gap = (seen.to(expected) - expected).abs()
    return bool(((gap <= error) | ~gap.isfinite()).all())


def _seen_factors(
    weights: HeadWeights, attended: AttentionRecord, z: Tensor, rows: list[int], start: int | None
) -> dict[str, str]:
    assert attended.query is not None and attended.key is not None
    dtype = attended.query.dtype
    factor = weights.rotary or 1.0
    parts: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
    normed = weights.query_norm is not None
    ratio = 1.0 if normed else attended.scaling / weights.scaling
    for part, seen, scale in (("query", attended.query, ratio), ("key", attended.key, 1.0)):
        expected, error = _part(weights, part, z, dtype)
        expected, error = (_share(x, len(seen)) for x in (expected, error))
        seen = seen[:, rows].to(z) * scale / factor
        if seen.shape != expected.shape:
            return {part: f"{tuple(expected.shape)} heads, rows, width, not {tuple(seen.shape)}"}
        if normed:
            expected, error, seen = _undo_norm(weights, part, expected, error, seen, dtype)
        parts[part] = seen, expected, error
    if normed and abs(attended.scaling / weights.scaling - 1) > 1e-6:
        return {"query": f"scores are scaled by {attended.scaling:g}, not {weights.scaling:g}"}
    return _compare(weights, parts, start, normed)


def _share(heads: Tensor, seen: int) -> Tensor:
    """Repeat key-value heads as often as the trace saw them: Falcon repeats them itself."""
    return heads.repeat_interleave(seen // len(heads), 0) if seen % len(heads) == 0 else heads


def _part(weights: HeadWeights, part: str, z: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    weight, bias = getattr(weights, part), getattr(weights, f"{part}_bias")
    return _heads(weight, bias, z, weights.clip, dtype)


def _undo_norm(
    weights: HeadWeights,
    part: str,
    expected: Tensor,
    error: Tensor,
    seen: Tensor,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Put the gain on what the weights give, take the shift off what was seen, equalize scales."""
    gain, shift = (getattr(weights, f"{part}_{name}") for name in ("gain", "shift"))
    if weights.query_norm == "layer":
        expected = expected - expected.mean(-1, keepdim=True)
        error = error + error.mean(-1, keepdim=True)
    if gain is not None:
        gain = _per_head(gain, expected).to(expected)
        expected, error = expected * gain, error * gain.abs()
    if shift is not None:
        seen = seen - _per_head(shift, expected).to(expected)
    size = expected.square().sum(-1, keepdim=True)
    scale = torch.where(size > 0, seen.norm(dim=-1, keepdim=True) / size.sqrt(), 0.0)
    unit = 8 * _precision(dtype)
    error = error + error.norm(dim=-1, keepdim=True) * expected.abs() / size.sqrt().clamp_min(
        1e-300
    )
    return expected * scale, error * scale + unit * (seen.abs() + (expected * scale).abs()), seen


def _per_head(gain: Tensor, heads: Tensor) -> Tensor:
    """Return a gain in any of its three forms, as it multiplies (head, row, head width)."""
    if gain.ndim == 2:
        return gain[:, None]
    return gain if gain.shape[0] == heads.shape[-1] else gain.view(heads.shape[0], 1, -1)


def _compare(
    weights: HeadWeights,
    parts: Mapping[str, tuple[Tensor, Tensor, Tensor]],
    start: int | None,
    normed: bool,
) -> dict[str, str]:
    found = {}
    turned = weights.rotary is not None
    for part, (seen, expected, error) in parts.items():
        still = slice(None) if not turned else slice(0, 1 if start == 0 else 0)
        if not _within(seen[:, still], expected[:, still], error[:, still]):
            found[part] = f"W z + b is not the {part} that attention used"
        length = error.norm(dim=-1) + 8 * torch.finfo(torch.float32).eps * seen.norm(dim=-1)
        shifted = getattr(weights, f"{part}_shift") is not None
        even = weights.rotary in (None, 1.0) and not (normed and shifted)
        if even and not _within(seen.norm(dim=-1), expected.norm(dim=-1), length + error.sum(-1)):
            found[part] = f"|W z + b| is not the length of the {part} that attention used"
    return found


def _seen_scores(
    weights: HeadWeights, attended: AttentionRecord, z: Tensor, rows: list[int], start: int | None
) -> dict[str, str]:
    """Check against the scores alone: RoPE keeps the diagonal, ALiBi is the same in every row."""
    assert attended.scores is not None and weights.query is not None and weights.key is not None
    dtype = attended.scores.dtype
    (query, query_error), (key, key_error) = (_part(weights, p, z, dtype) for p in ("query", "key"))
    key, key_error = (_share(x, len(query)) for x in (key, key_error))
    if len(query) != attended.heads:
        return {"query": f"the trace shows {attended.heads} heads, the weights {len(query)}"}
    factor = weights.scaling * (weights.rotary or 1.0) ** 2
    expected = factor * query @ key.mT
    unit = 2 * (query.shape[-1] + 4) * _precision(dtype)
    error = (query.abs() + query_error) @ (key.abs() + key_error).mT - query.abs() @ key.abs().mT
    error = abs(factor) * (error + unit * query.abs() @ key.abs().mT)
    seen = attended.scores[:, rows][:, :, rows].to(z)
    if "bias" in weights.refused.get("scores", ""):
        gap = seen - expected
        noise = error + 8 * _precision(dtype) * seen.abs()
        agrees = _within(gap[:, -1, 0], gap[:, 0, 0], noise[:, -1, 0] + noise[:, 0, 0])
    else:
        agrees = _within(*(x.diagonal(dim1=1, dim2=2) for x in (seen, expected, error)))
    return {} if agrees else {"query": "q . k is not the score that attention used"}


def _seen_rows(weights: HeadWeights, attended: AttentionRecord, rows: list[int]) -> dict[str, str]:
    """Check that every row used the keys that the bounds count on, without a bias on its scores."""
    for row in rows:
        allowed = int(attended.allowed_keys(rows=slice(row, row + 1)).sum(-1).min())
        expected = row + 1 if weights.window is None else min(row + 1, weights.window)
        if allowed != expected:
            return {"scores": f"row {row} uses {allowed} keys where {expected} were expected"}
        if _is_added(attended, row):
            return {"scores": "a bias is added to the scores"}
    return {}


def _is_added(attended: AttentionRecord, row: int) -> bool:
    bias = attended.bias
    if bias is None or bias.dtype == torch.bool:
        return False
    line = bias[..., row % bias.shape[-2], :]
    return bool(((line != 0) & (line > torch.finfo(bias.dtype).min / 2)).any())


def _gives(
    weights: HeadWeights, attended: AttentionRecord, entered: Tensor, left: Tensor, rows: list[int]
) -> bool:
    assert weights.output is not None and weights.value is not None
    value = attended.value
    if value is None:
        z = entered.cpu().double()
        value = _heads(weights.value, weights.value_bias, z, weights.clip, entered.dtype)[0]
    value = _share(value.cpu().double(), attended.heads)
    if len(weights.output) != attended.heads or value.shape[-1] != weights.output.shape[-1]:
        return False
    for row in rows:
        attention = attended.weights(rows=slice(row, row + 1)).to(value)
        gives = torch.einsum("hwe,hne->w", weights.output.to(value), attention @ value)
        if weights.output_bias is not None:
            gives = gives + weights.output_bias.to(value)
        gave = left[row].to(value)
        gap = (gives - gave).norm()
        if gap.isfinite() and gap > DISCRIMINATOR * gave.norm():
            return False
    return True
