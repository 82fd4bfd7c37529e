"""A model's cache of keys and values, by the name that it has in a call and in an output.

transformers calls it `cache` since 5.24 and `past_key_values` before, as code that models bring
along still does.
"""

import inspect
from typing import Any

from torch import nn
from transformers.modeling_outputs import BaseModelOutputWithPast

NAMES = ("cache", "past_key_values")
# In this transformers' own models and outputs.
CACHE = next(name for name in NAMES if name in BaseModelOutputWithPast.__dataclass_fields__)


def cache_name(model: nn.Module) -> str | None:
    """Return the name under which a model takes its cache; None where it takes none."""
    takes = inspect.signature(model.forward).parameters
    return next((name for name in NAMES if name in takes), None)


def cache_of(output: Any) -> Any:
    """Return the cache in an output of a model; None where there is none."""
    name = next((name for name in NAMES if hasattr(output, name)), "")
    return getattr(output, name, None)


def read_on(model: nn.Module, ids: Any, cache: Any, **options: Any) -> Any:
    """Return the output of a model for tokens after those in its cache, which grows by them.

    Args:
        ids: batch x token.
        cache: None at the beginning.
    """
    given = {cache_name(model) or CACHE: cache}
    return model(input_ids=ids, use_cache=True, **given, **options)
