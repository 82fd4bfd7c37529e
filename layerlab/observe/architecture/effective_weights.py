"""The weights that a model computes with, where its modules hold something else.

A parametrised weight, one that is pruned or normed by torch, and one with a LoRA adapter are put
together out of parameters that nothing is multiplied with as they stand; of a module that PEFT
trains whole, the original stays beside the copy that is used.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from layerlab.errors import NotApplicable
from layerlab.observe.architecture.packed_weights import is_scale, unpack
from layerlab.system.torch_settings import evaluation_mode

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
    seen: set[int] = set()
    used = [
        (f"{path}.{name}".removeprefix("."), module, name)
        for path, module in _list_used(root)
        for name in _names(inner_module(module))
    ]
    # A head that is tied is called by what it is tied to, which some families hold behind it.
    tied = getattr(root, "all_tied_weights_keys", {})
    for full, module, name in sorted(used, key=lambda one: one[0] in tied):
        own = inner_module(module)._parameters.get(name)
        # An adapter makes another weight of one that is shared.
        plain = own is not None and not _is_adapted(module)
        if shared or not plain or id(own) not in seen:
            found[full] = partial(effective_weight, module, name)
        if plain:
            seen.add(id(own))
    return found


def effective_weight(module: nn.Module, name: str) -> Tensor | None:
    """Return a weight of a module as it computes with it, where that has numbers.

    Raises:
        NotApplicable: it has an adapter that is no plain LoRA.
    """
    module = _find_used(module)
    if not _is_adapted(module):
        return _build_weight(module, name)
    value = effective_weight(_base(module), name)
    adapters: list[str] = [] if _is_idle(module) else list(getattr(module, "active_adapters", ()))
    for adapter in adapters:
        if not _has(module, adapter):
            continue
        if not _is_plain(module, adapter):
            raise NotApplicable(
                f"the weights of its adapter ({type(module).__name__}) are not those of plain LoRA;"
                " merge it first: model.merge_and_unload()"
            )
        with torch.no_grad():
            if value is not None and name == getattr(module, "parameter_name", "weight"):
                value = value + module.get_delta_weight(adapter).to(value.dtype)  # type: ignore[operator]
            elif name == "bias" and (added := _bias(module, adapter)) is not None:
                value = added if value is None else value + added.to(value.dtype)
    return value


def list_adapters(root: nn.Module) -> list[str]:
    """Return the names of the adapters that change what a model computes."""
    adapted: list[Any] = [one for one in root.modules() if _is_adapted(one)]
    active = (one.active_adapters for one in adapted if not one.disable_adapters)
    return sorted({name for names in active for name in names})


def count_parameters(root: nn.Module) -> int:
    """Count the parameters of a model without its adapters; one that modules share counts once."""
    held = set[nn.Parameter]()
    for _, module in _list_used(root):
        inner = inner_module(module)
        held.update(inner.parameters(recurse=False))
        if (parts := inner._modules.get(PARAMETRIZED)) is not None:
            held.update(parts.parameters())
    return sum(one.numel() for one in held)


def linear_map(module: nn.Module) -> tuple[Tensor, Tensor | None] | None:
    """Return the weight (a row for each output) and the bias that a linear module computes with.

    None for anything else, quantized weights and adapters that are no plain LoRA included.
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
    if weight.dtype.itemsize == 1:  # scaled by numbers that lie elsewhere
        return None
    return (weight.T if isinstance(inner, Conv1D) else weight), bias


def linear_maps(root: nn.Module) -> Iterator[tuple[str, Tensor, Tensor | None]]:
    """Yield the path, weight and bias of every linear module; of one with an adapter, together."""
    for path, module in _list_used(root):
        if (found := linear_map(module)) is not None:
            yield path, *found


def inner_module(module: nn.Module) -> nn.Module:
    """Return the module that an adapter stands in front of, or the module itself."""
    module = _find_used(module)
    return inner_module(_base(module)) if _is_adapted(module) else module


def _list_used(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules that are computed with, by path; those with an adapter as one."""
    waiting, met = [("", root)], set[nn.Module]()
    while waiting:
        path, module = waiting.pop()
        module = _find_used(module)
        if module in met:
            continue
        met.add(module)
        yield path, module
        inside = [
            (f"{path}.{name}".removeprefix("."), child)
            for name, child in inner_module(module).named_children()
            if name != PARAMETRIZED
        ]
        waiting += reversed(inside)


def _find_used(module: nn.Module) -> nn.Module:
    """Return what computes in place of a module that PEFT trains whole, or of some of its rows."""
    if (rows := module._modules.get("token_adapter")) is not None:
        return rows
    copies, original = (module._modules.get(one) for one in ("modules_to_save", "original_module"))
    if not isinstance(copies, nn.ModuleDict) or original is None:
        return module
    active: Any = getattr(module, "active_adapters", ())
    off = _is_idle(module) or not active or active[0] not in copies
    return original if off else copies[active[0]]


def _build_weight(module: nn.Module, name: str) -> Tensor | None:
    """Return a weight that torch puts together as it is now, and leave its parts as they are.

    What was made before a hook of `torch.nn.utils` is that of the last forward pass.
    """
    with torch.no_grad(), evaluation_mode(module._modules.get(PARAMETRIZED) or nn.Module()):
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, BasePruningMethod) and hook._tensor_name == name:
                return hook.apply_mask(module)
            if isinstance(hook, WeightNorm) and hook.name == name:
                return hook.compute_weight(module)
            if isinstance(hook, SpectralNorm) and hook.name == name:
                return hook.compute_weight(module, do_power_iteration=False)
        return unpack(module, name)


def _base(module: nn.Module) -> nn.Module:
    base = module.base_layer
    assert isinstance(base, nn.Module)
    return base


def _is_adapted(module: Any) -> bool:
    return hasattr(module, "active_adapters") and isinstance(
        getattr(module, "base_layer", None), nn.Module
    )


def _is_idle(module: Any) -> bool:
    return bool(getattr(module, "disable_adapters", False) or getattr(module, "merged", False))


def _has(module: Any, adapter: str) -> bool:
    """Return whether an adapter that is active anywhere in a model changes this module."""
    parts = [getattr(module, name, {}) for name in getattr(module, "adapter_layer_names", ())]
    return not parts or any(adapter in part for part in parts)


def _is_plain(module: Any, adapter: str) -> bool:
    parts = (getattr(module, name, {}) for name in ("lora_A", "lora_embedding_A"))
    changed = (getattr(module, name, {}) for name in ("use_dora", "lora_variant"))
    return any(adapter in part for part in parts) and not any(part.get(adapter) for part in changed)


def _bias(module: Any, adapter: str) -> Tensor | None:
    """Return what a LoRA adapter adds to the bias."""
    own = getattr(module.lora_B[adapter], "bias", None) if adapter in module.lora_B else None
    return None if own is None else own.detach() * module.scaling[adapter]


def _names(module: nn.Module) -> Iterator[str]:
    """Yield the names of a module's own weights, those that torch puts together included."""
    yield from module._modules.get(PARAMETRIZED) or ()  # type: ignore[misc]
    built = set()
    for name, value in module._parameters.items():
        base_name = next((name.removesuffix(end) for end in KEPT if name.endswith(end)), name)
        if value is None or base_name in built or is_scale(module, name):
            continue
        if base_name != name and isinstance(module.__dict__.get(base_name), Tensor):
            built.add(base_name)
            yield base_name
        else:
            yield name
