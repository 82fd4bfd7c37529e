"""Attention through transformers' `AttentionInterface`, on behalf of our attention parts."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any,
    *,
    implementation: str,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Return what the attention function of this name gives; "eager" is `eager_attention`."""
    function = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention)
    found: tuple[Tensor, Tensor | None] = function(module, query, key, value, mask, **options)
    return found


def eager_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Return the output and the weights of attention, written out, softmax in float32.

    Source: vaswani17, equation 1; pangu23, equation 2, whose sqrt(d) is that of a head here.
    """
    shared = module.num_key_value_groups
    if shared > 1:
        key = key.repeat_interleave(shared, dim=1)
        value = value.repeat_interleave(shared, dim=1)
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = functional.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    own = getattr(module, "weights_dropout", None)
    if own is None:
        weights = functional.dropout(weights, p=dropout, training=module.training)
    else:
        weights = own(weights)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights
