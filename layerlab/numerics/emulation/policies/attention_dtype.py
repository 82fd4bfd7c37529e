"""transformers' attention, asked through one that first brings what it is given to one dtype."""

import sys
from collections.abc import Callable
from functools import partial
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from layerlab.numerics.emulation.emulated_tensor import floating

# Attribute of an attention module whose scores, softmax and weighted sum are in float32.
SINGLE = "_attends_in_float32"
# Attribute of an attention module through which its queries and keys pass, if it is there.
EXCHANGE = "_exchanges_queries_and_keys"
PREFIX = "cast_"
EAGER = ("eager_attention_forward", "eager_attention")


class RoutedName(str):
    """The name of a model's attention: equal to it in a comparison, ours where it is looked up.

    Sparse families mask what their indexer left out only under names that they know, and ask the
    interface by the same attribute. A mapping finds an entry by its hash first.
    """

    def __hash__(self) -> int:
        return hash(PREFIX + str(self))

    def __eq__(self, other: object) -> bool:
        return other in (str(self), PREFIX + str(self))

    def __ne__(self, other: object) -> bool:
        return not self == other


def attends(module: nn.Module) -> bool:
    """Return whether a module, or its `attend`, asks transformers' interface for its attention."""
    code = getattr(unwrap(type(module).forward), "__code__", None)
    asks = code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names
    return asks or callable(getattr(module, "attend", None))


def answer(model: nn.Module) -> None:
    """Route the model's attention through one that unifies its dtypes first."""
    config: Any = getattr(model, "config", None)
    own = implementations(config)
    for name in map(str, filter(None, own.values())):
        AttentionInterface.register(PREFIX + name, partial(_settle, name))
        if name in ALL_MASK_ATTENTION_FUNCTIONS:
            AttentionMaskInterface.register(PREFIX + name, ALL_MASK_ATTENTION_FUNCTIONS[name])
    if own:
        config._attn_implementation = {
            part: name and RoutedName(name) for part, name in own.items()
        }


def implementations(config: Any) -> dict[str, str | None]:
    """Return the attention implementation of a configuration and of each one inside it."""
    own = getattr(config, "_attn_implementation", None)
    if own is None:
        return {}
    inner = {part: getattr(config, part, None) for part in config.sub_configs}
    return {
        "": own,
        **{part: one._attn_implementation for part, one in inner.items() if one is not None},
    }


def _settle(
    name: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    *args: Any,
    **options: Any,
) -> Any:
    """Apply the module's own attention to queries, keys, values and mask of one dtype."""
    dtype = torch.float32 if getattr(module, SINGLE, False) else value.dtype
    mask = finite(attention_mask, dtype) if floating(attention_mask) else attention_mask
    exchange = getattr(module, EXCHANGE, None)
    if exchange is not None:
        query, key = exchange(query, key)
    own = ALL_ATTENTION_FUNCTIONS.get(name, _eager(module))
    given = (factor.to(dtype) for factor in (query, key, value))
    return own(module, *given, mask, *args, **options)


def _eager(module: nn.Module) -> Callable[..., Any] | None:
    """Return the eager attention that a module's code, or that of its `attend`, falls back to."""
    homes = (type(module).__module__, getattr(getattr(module, "attend", None), "__module__", ""))
    scopes = (vars(sys.modules[home]) for home in homes if home in sys.modules)
    found = (value for scope in scopes for name, value in scope.items() if name in EAGER)
    return next(found, None)


def finite(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask in another dtype so that no row becomes all infinite.

    The lowest number of that dtype may be another.
    """
    if value.dtype == dtype:
        return value
    return value.clamp(min=max(torch.finfo(dtype).min, torch.finfo(value.dtype).min)).to(dtype)
