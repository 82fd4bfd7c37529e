"""Fused attention in the operations of plain attention, each with a place and a name."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional

from layerlab.numerics.emulation.unfused_attention import MarkRun, UnfusedAttention
from layerlab.numerics.formats.formats import find, spans_tensor
from layerlab.numerics.profiles.profile import NumericsProfile

# What is rounded of attention's queries, keys and values, and what is made of them.
ATTENDING = ("queries", "cache", "scores", "softmax", "attention_weights", "context")
# Tensors of the size of the scores that a run holds at once.
COPIES = 2


class PlainAttention(UnfusedAttention):
    """While it is active, `scaled_dot_product_attention` is done as eager attention does it.

    Args:
        mark: as of `UnfusedAttention`.
        profiles: of runs side by side.
        runs: how many these are.
    """

    def __init__(self, mark: MarkRun, profiles: Iterable[NumericsProfile], runs: int) -> None:
        apart = all(map(_rounds_by_row, profiles))
        super().__init__(mark=mark if apart else None, copies=COPIES * runs)
        self.compute = attend


def _rounds_by_row(profile: NumericsProfile) -> bool:
    """Return whether what a row of attention becomes does not depend on other heads and rows."""
    names = [profile.operations.get(one, profile.default(one)) for one in ATTENDING]
    return not any(spans_tensor(find(name)) for name in names)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute attention as models do without a kernel: scores, scale, mask, softmax in float32.

    Example:
        >>> q, k, v = torch.randn(3, 1, 2, 5, 8)
        >>> fused = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        >>> torch.allclose(attend(q, k, v, is_causal=True), fused, atol=1e-6)
        True
    """
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key = key.repeat_interleave(groups, dim=-3)
        value = value.repeat_interleave(groups, dim=-3)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = torch.matmul(query, key.transpose(-2, -1)) * factor
    hidden = None
    if is_causal:
        rows, columns = scores.shape[-2:]
        hidden = torch.ones(rows, columns, dtype=torch.bool, device=scores.device).triu(1)
    elif attn_mask is not None and attn_mask.dtype == torch.bool:
        hidden = ~attn_mask
    elif attn_mask is not None:
        scores = scores + attn_mask.to(scores.dtype)
    if hidden is not None:
        scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
    weights = functional.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    return torch.matmul(weights, value)
