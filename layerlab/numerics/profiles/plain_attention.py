"""Fused attention in the operations of plain attention, each with a place and a name."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class PlainAttention(TorchFunctionMode):
    """While it is active, `scaled_dot_product_attention` is done as eager attention does it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        return attend(*args, **(kwargs or {}))


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
