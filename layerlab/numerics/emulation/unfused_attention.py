"""Fused attention taken apart, so that what it rounds inside has a place and a name.

A fused kernel keeps scores, maximum and sum in float32 and brings the weights back to the dtype of
the values before it multiplies them; so does this transcription.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from layerlab.numerics.emulation.autocast import lower
from layerlab.numerics.emulation.emulated_tensor import relabel


class UnfusedAttention(TorchFunctionMode):
    """While it is active, `scaled_dot_product_attention` is done in operations of its own.

    Args:
        in_place: overwrite scores by weights, where no gradient and no rule asks for them.
    """

    def __init__(self, in_place: bool = False) -> None:
        super().__init__()
        self._attention = partial(attention, in_place=in_place)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        # To autocast it is one operation of the low dtype; inside, dtypes are the kernel's.
        args, kwargs = lower((args, kwargs or {}))
        with torch._C._DisableAutocast():
            return self.attend(*args, **kwargs)

    def attend(self, *args: Any, **kwargs: Any) -> Any:
        """Compute attention one operation at a time in place of the fused kernel."""
        return self._attention(*args, **kwargs)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    in_place: bool = False,
) -> Tensor:
    """Compute attention as a fused kernel does, one operation at a time.

    out_i = sum_j round(e_ij) v_j / sum_j e_ij with e_ij = exp(s_ij - max_j s_ij), s in float32.

    Source: dao22, Algorithm 1, with one block of keys.
    """
    dtype = query.dtype
    wide = torch.promote_types(dtype, torch.float32)
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key = key.repeat_interleave(groups, dim=-3)
        value = value.repeat_interleave(groups, dim=-3)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    widen = relabel if in_place else Tensor.to
    scores = torch.matmul(widen(query, wide), widen(key, wide).transpose(-2, -1))
    into = scores if in_place else None
    fill = Tensor.masked_fill_ if in_place else Tensor.masked_fill
    scores = torch.mul(scores, factor, out=into)
    hidden = _hidden_keys(scores, attn_mask, is_causal)
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        scores = scores + attn_mask.to(wide)
    if hidden is not None:
        scores = fill(scores, hidden, -torch.inf)
    highest = scores.amax(dim=-1, keepdim=True)
    weights = torch.exp(torch.sub(scores, highest, out=into), out=into)
    if hidden is not None:
        # A row that may look nowhere gives nothing instead of 0/0.
        blind = hidden.all(dim=-1, keepdim=True)
        weights = fill(weights, blind, 0.0)
        total = weights.sum(dim=-1, keepdim=True).masked_fill(blind, 1.0)
    else:
        total = weights.sum(dim=-1, keepdim=True)
    weights = functional.dropout(weights, dropout_p)
    mixed = torch.matmul(widen(weights.to(dtype), wide), widen(value, wide))
    return (mixed / total).to(dtype)


def _hidden_keys(scores: Tensor, mask: Tensor | None, causal: bool) -> Tensor | None:
    """Return which keys a query may not see.

    It is read from masks alone: values that are rounded decide nothing.
    """
    if mask is not None:
        return ~mask if mask.dtype == torch.bool else mask == -torch.inf
    if not causal:
        return None
    rows, columns = scores.shape[-2:]
    return torch.ones(rows, columns, dtype=torch.bool, device=scores.device).triu(1)
