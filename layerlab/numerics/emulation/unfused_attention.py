"""Fused attention taken apart, so that what it rounds inside has a place and a name.

A fused kernel keeps scores, maximum and sum in float32 and brings the weights back to the dtype of
the values before it multiplies them; so does this transcription.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from layerlab.numerics.emulation.autocast import lower
from layerlab.numerics.emulation.emulated_tensor import relabel

# Computed at once, unless those of one head are more; a gigabyte in float64.
SCORES = 2**27


class UnfusedAttention(TorchFunctionMode):
    """While it is active, `scaled_dot_product_attention` is done in operations of its own.

    Args:
        in_place: overwrite scores by weights, where no gradient and no rule asks for them.
        restart: is called between heads, which are then computed few enough at a time that their
            scores fit into memory; None to compute all at once.
    """

    def __init__(self, in_place: bool = False, restart: Callable[[], None] | None = None) -> None:
        super().__init__()
        self._attention: Callable[..., Tensor] = partial(attention, in_place=in_place)
        self._restart = restart if in_place else None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        # To autocast it is one operation of the low dtype; inside, dtypes are the kernel's.
        args, kwargs = lower((args, kwargs or {}))
        with torch._C._DisableAutocast():
            return self.attend(*args, **kwargs)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        """Compute attention one operation at a time in place of the fused kernel."""
        heads, keys = (one.shape[-3] if one.dim() > 2 else 1 for one in (query, key))
        scores = query.shape[:-1].numel() * key.shape[-2]
        # Heads that share a key stay together.
        most = max(SCORES * keys // max(scores, 1), 1)
        if self._restart is None or keys <= most:
            return self._attention(query, key, value, attn_mask, *args, **kwargs)
        apart = attn_mask is not None and attn_mask.dim() > 2 and attn_mask.shape[-3] == heads
        parts: list[Tensor] = []
        for first in range(0, keys, most):
            if parts:
                self._restart()
            shared = slice(first, first + most)
            own = slice(first * heads // keys, (first + most) * heads // keys)
            mask = attn_mask[..., own, :, :] if apart and attn_mask is not None else attn_mask
            cut = query[..., own, :, :], *(one[..., shared, :, :] for one in (key, value))
            parts.append(self._attention(*cut, mask, *args, **kwargs))
        return torch.cat(parts, dim=-3)


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
