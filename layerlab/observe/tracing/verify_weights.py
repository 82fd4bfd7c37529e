"""Check weights that were cut into heads against a forward pass.

`project` reads a layout from a table; here a traced layer confirms it, row by row, within the
rounding errors of the model's own precision. What does not agree is refused with the reason.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from layerlab.observe.architecture.head_weights import HeadWeights
from layerlab.observe.tracing.attained_scores import find_attained
from layerlab.observe.tracing.attention.record import AttentionRecord
from layerlab.observe.tracing.attention.tiles import WIDEST, blocks
from layerlab.observe.tracing.device_schedule import device_schedule, read_host, widen
from layerlab.shapes import Hidden

DISCRIMINATOR = 2.0**-4
"""A wrong cut errs by the size of the vector; rounding, even of bfloat16, stays far below this."""

FIELDS: Mapping[str, tuple[str, ...]] = {
    "query": ("query", "query_bias"),
    "key": ("key", "key_bias"),
    "value": ("value", "value_bias"),
    "output": ("output", "output_bias"),
    "gain": ("gain", "shift", "norm"),
    "scores": (),
}


class WeightCheck(NamedTuple):
    """A number on the device, and the refusal of a part where it is not as expected."""

    part: str
    seen: Tensor
    refusal: str
    expected: int = 1


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
    gone["attained"] = None if found else find_attained(weights, attended, entered)
    return replace(weights, refused={**found, **weights.refused}, **gone)


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
    All is computed where the record lies, and the host waits once.
    """
    rows = sorted({0, attended.tokens // 2, attended.tokens - 1})
    if len(entered) != attended.tokens:
        reason = f"attention read {attended.tokens} tokens, but its input has {len(entered)}"
        return {part: reason for part in FIELDS if getattr(weights, part, None) is not None}
    z = widen(_pick(entered, rows).to(attended.device))
    checks = []
    if weights.gain is not None:
        normed = _is_normed(weights, weights.gain.to(z), z, _precision(entered.dtype) / 2)
        reason = "attention's input did not come from the norm that was found in front of it"
        checks.append(WeightCheck("gain", normed, reason))
    if weights.query is not None and weights.key is not None:
        seen = _seen_scores if attended.query is None else _seen_factors
        checks += seen(weights, attended, z, rows, start, _coarser(attended, entered))
    if weights.value is not None and attended.value is not None:
        value, error = _heads(weights.value, weights.value_bias, z, weights.clip, entered.dtype)
        value, error = (_share(x, len(attended.value)) for x in (value, error))
        agrees = _agree(_pick(attended.value, rows, 1), value, error)
        checks.append(
            WeightCheck("value", agrees, "W_v z + b_v is not the value that attention used")
        )
    checks += _seen_rows(weights, attended, rows)
    if left is not None and weights.output is not None and weights.value is not None:
        gives = _gives(weights, attended, entered, left, rows)
        checks.append(
            WeightCheck("output", gives, "sum_h W_o,h A_h v_h is not what attention gave")
        )
    return _refusals(checks)


def _coarser(attended: AttentionRecord, entered: Hidden) -> torch.dtype:
    """Return what queries and keys were made in: families widen them before they multiply them."""
    used = attended.query if attended.query is not None else attended.scores
    assert used is not None
    return max((used.dtype, entered.dtype), key=lambda kind: torch.finfo(kind).eps)


def _refusals(checks: Sequence[WeightCheck]) -> dict[str, str]:
    """Return the first refusal of each part; the output is not judged by a wrong value."""
    found: dict[str, str] = {}
    for check, seen in zip(checks, read_host([one.seen for one in checks]), strict=True):
        if seen != check.expected:
            found.setdefault(check.part, check.refusal.format(allowed=int(seen)))
    if "value" in found:
        found.pop("output", None)
    return found


def _pick(given: Tensor, rows: Sequence[int], axis: int = 0) -> Tensor:
    """Return some rows; as an index, their numbers would have to be sent to the device."""
    return torch.stack([given.select(axis, row) for row in rows], axis)


def _precision(dtype: torch.dtype) -> float:
    """Return the machine epsilon, of float32 at best: norms and rotary tables stay in float32."""
    return max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)


def _is_normed(weights: HeadWeights, gain: Tensor, z: Tensor, roundoff: float) -> Tensor:
    """Return whether z = gain * x / rms(x) + shift is possible: rms((z - shift) / gain) <= 1."""
    shift = torch.zeros_like(gain) if weights.shift is None else weights.shift.to(z)
    live = gain.abs() > 0
    x = torch.where(live, (z - shift) / torch.where(live, gain, 1.0), 0.0)
    error = 8 * roundoff * (z.abs() + shift.abs()) / gain.abs().clamp_min(torch.finfo().tiny)
    error = torch.where(live, error, 0.0)
    limit = 1 + error.square().mean(-1).sqrt() + 64 * roundoff
    small = (x.square().mean(-1).sqrt() <= limit).all()
    if weights.norm != "layer":
        return small
    flat = (x.mean(-1).abs() <= error.mean(-1) + 64 * roundoff).all()
    return small & (flat | ~live.all())


def _heads(
    weight: Tensor, bias: Tensor | None, z: Tensor, clip: float | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return w z + b per head, and how far rounding may have moved the model's own result.

    |error| <= (2 u + 2 width u_32) (|W| |z| + |b|), u of the model and u_32 of the accumulator.
    """
    values, sizes = [], []
    for heads in _groups(weight, z.device):
        wide = weight[heads].to(z)
        values.append(torch.einsum("hew,nw->hne", wide, z))
        sizes.append(torch.einsum("hew,nw->hne", wide.abs(), z.abs()))
    value, size = torch.cat(values), torch.cat(sizes)
    if bias is not None:
        value = value + bias.to(z)[:, None]
        size = size + bias.to(z).abs()[:, None]
    unit = _unit(weight.shape[-1], dtype)
    return (value if clip is None else value.clamp(-clip, clip)), unit * size


def _unit(terms: int, dtype: torch.dtype) -> float:
    """Return 4 u + 2 terms u_32 of a stored sum, relative to the sizes of what is summed."""
    accumulator = torch.finfo(torch.promote_types(dtype, torch.float32)).eps / 2
    return 2 * _precision(dtype) + 2 * (terms + 2) * accumulator


def _groups(heads: Tensor, device: torch.device) -> Iterator[slice]:
    """Return as many heads at a time as the device is to hold at once in float64."""
    room = device_schedule(device).block_bytes // WIDEST
    return blocks(len(heads), max(1, room // heads[0].numel()))


def _agree(seen: Tensor, expected: Tensor, error: Tensor) -> Tensor:
    """Return whether finite entries are within the error; broken weights are not a wrong cut."""
    if seen.shape != expected.shape:
        return expected.new_zeros(())
    gap = (seen.to(expected) - expected).abs()
    return ((gap <= error) | ~gap.isfinite()).all()


def _seen_factors(
    weights: HeadWeights,
    attended: AttentionRecord,
    z: Tensor,
    rows: list[int],
    start: int | None,
    dtype: torch.dtype,
) -> list[WeightCheck]:
    assert attended.query is not None and attended.key is not None
    factor = weights.rotary or 1.0
    parts: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
    normed = weights.query_norm is not None
    ratio = 1.0 if normed else attended.scaling / weights.scaling
    for part, seen, scale in (("query", attended.query, ratio), ("key", attended.key, 1.0)):
        expected, error = _part(weights, part, z, dtype)
        expected, error = (_share(x, len(seen)) for x in (expected, error))
        seen = _pick(seen, rows, 1).to(z) * scale / factor
        if seen.shape != expected.shape:
            shapes = f"{tuple(expected.shape)} heads, rows, width, not {tuple(seen.shape)}"
            return [WeightCheck(part, z.new_zeros(()), shapes)]
        if normed:
            expected, error, seen = _undo_norm(weights, part, expected, error, seen, dtype)
        parts[part] = seen, expected, error
    if normed and abs(attended.scaling / weights.scaling - 1) > 1e-6:
        scaled = f"scores are scaled by {attended.scaling:g}, not {weights.scaling:g}"
        return [WeightCheck("query", z.new_zeros(()), scaled)]
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
    length = size.sqrt().clamp_min(torch.finfo(size.dtype).tiny)
    error = error + error.norm(dim=-1, keepdim=True) * expected.abs() / length
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
) -> list[WeightCheck]:
    checks = []
    turned = weights.rotary is not None
    for part, (seen, expected, error) in parts.items():
        length = error.norm(dim=-1) + 8 * torch.finfo(torch.float32).eps * seen.norm(dim=-1)
        shifted = getattr(weights, f"{part}_shift") is not None
        if weights.rotary in (None, 1.0) and not (normed and shifted):
            agrees = _agree(seen.norm(dim=-1), expected.norm(dim=-1), length + error.sum(-1))
            reason = f"|W z + b| is not the length of the {part} that attention used"
            checks.append(WeightCheck(part, agrees, reason))
        still = slice(None) if not turned else slice(0, 1 if start == 0 else 0)
        agrees = _agree(seen[:, still], expected[:, still], error[:, still])
        checks.append(WeightCheck(part, agrees, f"W z + b is not the {part} that attention used"))
    return checks


def _seen_scores(
    weights: HeadWeights,
    attended: AttentionRecord,
    z: Tensor,
    rows: list[int],
    start: int | None,
    dtype: torch.dtype,
) -> list[WeightCheck]:
    """Check against the scores alone: RoPE keeps the diagonal, ALiBi is the same in every row.

    Errors of q and k add up as random ones: added in size they reach every score of wide heads.
    """
    assert attended.scores is not None and weights.query is not None and weights.key is not None
    (query, query_error), (key, key_error) = (_part(weights, p, z, dtype) for p in ("query", "key"))
    key, key_error = (_share(x, len(query)) for x in (key, key_error))
    if len(query) != attended.heads:
        reason = f"the trace shows {attended.heads} heads, the weights {len(query)}"
        return [WeightCheck("query", z.new_zeros(()), reason)]
    factor = weights.scaling * (weights.rotary or 1.0) ** 2
    expected = factor * query @ key.mT
    q, k, of_q, of_k = (one.square() for one in (query, key, query_error, key_error))
    spread = (of_q @ (k + of_k).mT + q @ of_k.mT).sqrt()
    unit = _unit(query.shape[-1], dtype)
    error = abs(factor) * (spread + unit * query.abs() @ key.abs().mT)
    seen = _pick(_pick(attended.scores, rows, 1), rows, 2).to(z)
    if "bias" in weights.refused.get("scores", ""):
        gap = seen - expected
        noise = error + 8 * _precision(dtype) * seen.abs()
        agrees = _agree(gap[:, -1, 0], gap[:, 0, 0], noise[:, -1, 0] + noise[:, 0, 0])
    else:
        agrees = _agree(*(x.diagonal(dim1=1, dim2=2) for x in (seen, expected, error)))
    return [WeightCheck("query", agrees, "q . k is not the score that attention used")]


def _seen_rows(
    weights: HeadWeights, attended: AttentionRecord, rows: list[int]
) -> list[WeightCheck]:
    """Check that every row used the keys that the bounds count on, without a bias on its scores."""
    checks = []
    for row in rows:
        allowed = attended.allowed_keys(rows=slice(row, row + 1)).sum(-1).min()
        expected = row + 1 if weights.window is None else min(row + 1, weights.window)
        reason = f"row {row} uses {{allowed}} keys where {expected} were expected"
        checks.append(WeightCheck("scores", allowed, reason, expected))
        if attended.bias is not None and attended.bias.dtype != torch.bool:
            added = _is_added(attended.bias, row)
            checks.append(WeightCheck("scores", added, "a bias is added to the scores", 0))
    return checks


def _is_added(bias: Tensor, row: int) -> Tensor:
    line = bias[..., row % bias.shape[-2], :]
    return ((line != 0) & (line > torch.finfo(bias.dtype).min / 2)).any()


def _gives(
    weights: HeadWeights, attended: AttentionRecord, entered: Tensor, left: Tensor, rows: list[int]
) -> Tensor:
    """Return whether the output weights make what attention gave of its values, in some rows."""
    assert weights.output is not None and weights.value is not None
    output, value = weights.output, attended.value
    if value is None:
        z = widen(entered.to(attended.device))
        value = _heads(weights.value, weights.value_bias, z, weights.clip, entered.dtype)[0]
    if len(output) != attended.heads or value.shape[-1] != output.shape[-1]:
        return value.new_zeros(())
    seen = [attended.weights(rows=slice(row, row + 1)) for row in rows]
    # Query heads that share a value are more rows of its attention.
    attention = widen(torch.cat(seen, 1)).view(len(value), -1, attended.keys)
    mixed = [attention[few] @ widen(value[few]) for few in _groups(value, attended.device)]
    heads = torch.cat(mixed).view(attended.heads, len(rows), -1)
    gives = heads.new_zeros(len(rows), output.shape[1])
    for few in _groups(output, attended.device):
        gives += (heads[few] @ output[few].to(heads).mT).sum(0)
    if weights.output_bias is not None:
        gives += weights.output_bias.to(heads)
    gave = _pick(left, rows).to(heads)
    gap = (gives - gave).norm(dim=-1)
    return (~gap.isfinite() | (gap <= DISCRIMINATOR * gave.norm(dim=-1))).all()
