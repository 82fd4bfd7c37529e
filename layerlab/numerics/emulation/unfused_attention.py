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

# Of attention's scores and weights, so many numbers are held at once; two gigabytes in float64.
SCORES = 2**28
# Products of a multiple of so many rows are the same bits on a CPU, however many these are.
ROWS = 64
MarkRun = Callable[[], Callable[[], None]]


class UnfusedAttention(TorchFunctionMode):
    """While it is active, `scaled_dot_product_attention` is done in operations of its own.

    Args:
        in_place: overwrite scores by weights, where no gradient and no rule asks for them.
        mark: returns what takes a run back to where it is now. This is done between heads, or
            between rows of one that is too large: so few are computed at a time that their scores
            fit into memory. None to compute all at once.
        copies: tensors of the size of the scores that are held at once.
    """

    def __init__(
        self,
        in_place: bool = False,
        mark: MarkRun | None = None,
        copies: int = 2,
    ) -> None:
        super().__init__()
        self.compute: Callable[..., Tensor] = partial(attention, in_place=in_place)
        self._mark = mark
        self._copies = copies

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
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **options: Any,
    ) -> Tensor:
        """Compute attention one operation at a time in place of the fused kernel."""
        options["dropout_p"] = dropout_p
        return self._attend(query, key, value, attn_mask, is_causal, options)

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Any, causal: bool, options: Any
    ) -> Tensor:
        rows, columns = query.shape[-2], key.shape[-2]
        # Heads that share a key stay together.
        keys = key.shape[-3] if key.dim() > 2 else 1
        row = query.shape[:-2].numel() * columns // max(keys, 1)
        most = max(SCORES // max(self._copies * row, 1), 1)
        most = most // ROWS * ROWS or most
        if self._mark is None or keys * rows <= most:
            return self.compute(query, key, value, mask, is_causal=causal, **options)
        axis, total, count = (-3, keys, max(most // rows, 1)) if keys > 1 else (-2, rows, most)
        go_back, found = self._mark(), list[Tensor]()
        for first in range(0, total, count):
            if found:
                go_back()
            cut = partial(_cut, axis=axis, first=first, last=first + count, total=total)
            own, seen = cut(query), None if mask is None else cut(mask)
            if axis == -3:
                part = self._attend(own, cut(key), cut(value), seen, causal, options)
            else:
                if causal:
                    shape = own.shape[-2], columns
                    seen = torch.ones(shape, dtype=torch.bool, device=own.device).tril(first)
                part = self._attend(own, key, value, seen, False, options)
            found.append(part)
        return torch.cat(found, dim=axis)


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


def _cut(value: Tensor, axis: int, first: int, last: int, total: int) -> Tensor:
    """Return a part of a tensor, first to last of so many; what is the same for all is whole."""
    size = value.shape[axis] if value.dim() >= -axis else 1
    if size == 1:
        return value
    return value.narrow(
        axis, start := first * size // total, min(last * size // total, size) - start
    )


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
