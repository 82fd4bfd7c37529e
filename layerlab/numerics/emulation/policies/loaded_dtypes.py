"""The dtypes of what a model stores once transformers has loaded it in a low one."""

import copy
import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from layerlab.numerics.emulation.emulated_tensor import floating

HALVES = (torch.bfloat16, torch.float16)


class KnownFollowers(NamedTuple):
    """Findings about a model, with what it was made of."""

    settings: Any
    default: torch.dtype
    followers: dict[str, bool]


# To make a model again takes longer than a pass of a few tokens, and each emulation asks.
_MADE: WeakKeyDictionary[nn.Module, KnownFollowers] = WeakKeyDictionary()


def find_followers(model: nn.Module, low: torch.dtype) -> dict[str, bool]:
    """Return whether a model's own code makes each parameter and buffer in the default dtype.

    transformers loads into a model without values, made while `low` is the default dtype, or bf16
    for one that is not low: what the code makes in float32 whatever the default is, stays so. None
    is known where the module is none of transformers', or not made of its configuration alone.
    """
    if not isinstance(model, PreTrainedModel):
        return {}
    default = low if low in HALVES else torch.bfloat16
    cached, settings = _MADE.get(model), _read(model.config)
    if cached is None or (cached.default, cached.settings) != (default, settings):
        cached = _MADE[model] = KnownFollowers(settings, default, _make_followers(model, default))
    return cached.followers


def _read(value: Any) -> Any:
    """Return what a configuration holds, as it is now; some cannot be compared as they are."""
    if isinstance(value, PreTrainedConfig):
        value = vars(value)
    if isinstance(value, dict):
        return {name: _read(one) for name, one in value.items()}
    return [_read(one) for one in value] if isinstance(value, list | tuple) else value


def _make_followers(model: PreTrainedModel, default: torch.dtype) -> dict[str, bool]:
    config = copy.deepcopy(model.config)
    inner = (getattr(config, part, None) for part in config.sub_configs)
    for one in (config, *inner):
        if one is not None:
            one.dtype = default
    with torch.random.fork_rng(devices=[]), ExitStack() as stack:
        for context in type(model).get_init_context(default, False, False, None):
            stack.enter_context(context)
        try:
            made = type(model)(config)
        except TypeError:
            return {}
    tables = (made.named_parameters, made.named_buffers)
    found = (pair for table in tables for pair in table(remove_duplicate=False))
    return {name: value.dtype == default for name, value in found}


def low_precision_weights(
    model: nn.Module, low: torch.dtype, followers: dict[str, bool]
) -> Iterator[tuple[str, str, dict[str, Any], Tensor, torch.dtype]]:
    """Yield owner, name, table, value and dtype of everything that a low-dtype model stores.

    Those are the floating parameters and persistent buffers, and the other buffers that follow the
    default dtype. Where `followers` does not tell, those do that lose nothing by it, as masks.

    Args:
        model: the model.
        low: the dtype that it would be loaded in.
        followers: what `find_followers` found.
    """
    kept = _find_kept_patterns(model, low)
    for owner, module in model.named_modules():
        tables: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for table in tables:
            for name, value in list(table.items()):
                if not floating(value):
                    continue
                full = f"{owner}.{name}".lstrip(".")
                temporary = name in module._non_persistent_buffers_set
                follows = followers.get(full)
                if follows is None:
                    follows = not temporary or _keeps(value)
                if temporary and not follows:
                    continue
                stays = not follows or (not temporary and any(one.search(full) for one in kept))
                single = stays and low in HALVES
                yield owner, name, table, value, torch.float32 if single else low


def _find_kept_patterns(model: nn.Module, low: torch.dtype) -> list[re.Pattern[str]]:
    """Return the patterns of names that transformers loads in float32 whatever is requested."""
    names = set(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    if low == torch.float16:
        names |= set(getattr(model, "_keep_in_fp32_modules", None) or ())
    return [re.compile(name.replace("*", ".*")) for name in names]


def _keeps(values: Tensor) -> bool:
    """Return whether a table can be stored in eight binary digits."""
    return torch.equal(values.to(torch.bfloat16).to(values.dtype), values)
