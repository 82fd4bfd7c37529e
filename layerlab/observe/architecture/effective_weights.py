"""The weights that a model computes with, where its modules hold something else.

A parametrised weight, one that is pruned or normed by torch, and one with a LoRA adapter are put
together out of parameters that nothing is multiplied with as they stand.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from layerlab.errors import NotApplicable
from layerlab.system.offload import parameter

PARAMETRIZED = "parametrizations"
# Endings of what torch.nn.utils keeps in place of a weight: of pruning and spectral norm, and of
# weight norm.
KEPT = ("_orig", "_v", "_g")


def effective_weights(
    root: nn.Module, shared: bool = False
) -> dict[str, Callable[[], Tensor | None]]:
    """Return by name what gives each weight that the modules inside compute with.

    It gives None where a weight has no numbers here.

    Args:
        shared: list a weight that several modules share for each of them, not only for the first.
    """
    found: dict[str, Callable[[], Tensor | None]] = {}
    known: set[int] = set()
    inside: tuple[str, ...] = ()
    for path, module in root.named_modules():
        start = f"{path}." if path else ""
        if start.startswith(inside):
            continue
        if _is_adapted(module):
            inside += (start,)
        elif PARAMETRIZED in module._modules:
            inside += (f"{start}{PARAMETRIZED}.",)
        for name in _names(inner_module(module)):
            own = inner_module(module)._parameters.get(name)
            if shared or own is None or id(own) not in known:
                found[start + name] = partial(effective_weight, module, name)
            known.add(id(own))
    return found


def effective_weight(module: nn.Module, name: str) -> Tensor | None:
    """Return a weight of a module as it computes with it, where that has numbers.

    Raises:
        NotApplicable: it has an adapter that is no plain LoRA.
    """
    if not _is_adapted(module):
        with torch.no_grad():
            return parameter(module, name)
    value = effective_weight(inner_module(module), name)
    adapters: list[str] = [] if _is_idle(module) else list(getattr(module, "active_adapters", ()))
    for adapter in adapters:
        if not _is_plain(module, adapter):
            raise NotApplicable(
                f"the weights of its adapter ({type(module).__name__}) are not those of plain LoRA;"
                " merge it first: model.merge_and_unload()"
            )
        if value is not None and name == "weight":
            with torch.no_grad():
                value = value + module.get_delta_weight(adapter).to(value.dtype)  # type: ignore[operator]
    return value


def linear_map(module: nn.Module) -> tuple[Tensor, Tensor | None] | None:
    """Return the weight (a row for each output) and the bias that a linear module computes with.

    None for anything else, quantised weights and adapters that are no plain LoRA included.
    """
    from transformers.pytorch_utils import Conv1D  # late: a list of studies needs none of it

    inner = inner_module(module)
    if not isinstance(inner, nn.Linear | Conv1D):
        return None
    try:
        weight, bias = effective_weight(module, "weight"), effective_weight(module, "bias")
    except NotApplicable:
        return None
    if weight is None or weight.ndim != 2 or not weight.is_floating_point():
        return None
    return (weight.T if isinstance(inner, Conv1D) else weight), bias


def linear_maps(root: nn.Module) -> Iterator[tuple[str, Tensor, Tensor | None]]:
    """Yield the path, weight and bias of every linear module; of one with an adapter, together."""
    inside: tuple[str, ...] = ()
    for path, module in root.named_modules():
        if f"{path}.".startswith(inside):
            continue
        if _is_adapted(module):
            inside += (f"{path}.",)
        if (found := linear_map(module)) is not None:
            yield path, *found


def inner_module(module: nn.Module) -> nn.Module:
    """Return the module that an adapter stands in front of, or the module itself."""
    inner = getattr(module, "base_layer", None)
    return inner if _is_adapted(module) and isinstance(inner, nn.Module) else module


def _is_adapted(module: Any) -> bool:
    return hasattr(module, "active_adapters") and isinstance(
        getattr(module, "base_layer", None), nn.Module
    )


def _is_idle(module: Any) -> bool:
    return bool(getattr(module, "disable_adapters", False) or getattr(module, "merged", False))


def _is_plain(module: Any, adapter: str) -> bool:
    parts = (getattr(module, name, {}) for name in ("lora_A", "lora_embedding_A"))
    changed = (getattr(module, name, {}) for name in ("use_dora", "lora_variant"))
    return any(adapter in part for part in parts) and not any(part.get(adapter) for part in changed)


def _names(module: nn.Module) -> Iterator[str]:
    """Yield the names of a module's own weights, those that torch puts together included."""
    yield from module._modules.get(PARAMETRIZED) or ()  # type: ignore[misc]
    built = set()
    for name, value in module._parameters.items():
        whole = next((name.removesuffix(end) for end in KEPT if name.endswith(end)), name)
        if value is None or whole in built:
            continue
        if whole != name and isinstance(module.__dict__.get(whole), Tensor):
            built.add(whole)
            yield whole
        else:
            yield name
