"""Weights that accelerate keeps off the device until a module runs: on a processor, or on a disk.

Such a parameter has a shape and no numbers (it is on the meta device); hooks of accelerate bring
the numbers while its module runs, from a store that can be asked for them at any time.
"""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from layerlab.errors import UserError


def parameter(module: nn.Module, name: str) -> Tensor | None:
    """Return a parameter of `module` itself, from the offload store if it is not in memory."""
    tensor = getattr(module, name, None)
    if not isinstance(tensor, Tensor):
        return None
    if tensor.device.type != "meta":
        return tensor.detach()
    found = fetch(module, name)
    return tensor if found is None else found


def fetch(module: nn.Module, name: str) -> Tensor | None:
    """Return a parameter of `module` itself from the offload store; None where it is not there."""
    store = _store(module)
    return store[name].detach() if store is not None and name in store else None


def is_offloaded(model: nn.Module) -> bool:
    """Return whether some weights come to their device only when a module needs them."""
    return any(weight.is_meta for weight in model.parameters())


def check_held(model: nn.Module) -> None:
    """Refuse weights without numbers, or with others in their place for now.

    Raises:
        UserError: there are some: in no memory and no store, packed away from any tensor, or
            replaced within a block that emulates.
    """
    for place, module in model.named_modules():
        store = _store(module) or {}
        for name, weight in module.named_parameters(prefix=place, recurse=False):
            if not isinstance(weight, nn.Parameter):
                raise UserError(
                    f"{name} of {type(model).__name__} is replaced for now, by the type "
                    f"{type(weight).__name__}, as in a block of layerlab.emulate; leave that first"
                )
            if weight.is_meta and name.rpartition(".")[2] not in store:
                raise UserError(
                    f"{name} of {type(model).__name__} is on the meta device, which holds no "
                    "numbers; load the model on a device that does"
                )
    for name, held in model.state_dict().items():
        if not isinstance(held, Tensor):
            raise UserError(
                f"{name} of {type(model).__name__} is no tensor but a {type(held).__name__}, as "
                "quantize_dynamic packs weights; give the model as it was before"
            )


def check_unquantized(model: nn.Module) -> None:
    """Refuse weights without numbers of their own, or that a quantizer computes with.

    Raises:
        UserError: there are some.
    """
    check_held(model)
    if (place := find_quantized(model)) is not None:
        raise UserError(
            f"{place} of {type(model).__name__} is quantized, and what its quantizer computes "
            "cannot be emulated; expected a model in floating point, as that which it was made from"
        )


def find_quantized(model: nn.Module) -> str | None:
    """Return the path of the first module whose quantizer has a forward pass of its own."""
    for path, module in model.named_modules():
        weights = [one for one in module._parameters.values() if one is not None]
        packed = any(is_bitsandbytes(one) or is_wrapped(one) for one in weights)
        if packed or "quantization_scheme" in vars(module):
            return path
    return None


def is_wrapped(weight: Tensor) -> bool:
    """Return whether a weight is a type of torchao's, quanto's or another's."""
    return (
        is_traceable_wrapper_subclass(weight) and type(weight).dequantize is not Tensor.dequantize
    )


def list_parts(weight: Any) -> list[Tensor]:
    """Return the tensors that a weight is made of: packed numbers and scales of a wrapped one."""
    if not is_wrapped(weight):
        return [weight]
    names, _ = weight.__tensor_flatten__()
    return [part for name in names for part in list_parts(getattr(weight, name))]


def is_bitsandbytes(weight: Tensor) -> bool:
    """Return whether a weight in memory is packed by bitsandbytes."""
    return type(weight).__name__ in ("Params4bit", "Int8Params") and not weight.is_meta


def execution_device(module: nn.Module) -> torch.device | None:
    """Return the device that accelerate runs a module on; None where that is not its affair."""
    for hook in _hooks(module):
        device = getattr(hook, "execution_device", None)
        if device is not None:
            return torch.device(device)
    return None


def running_device(model: nn.Module) -> torch.device:
    """Return the device that a model begins to run on: that of its weights, unless they wait."""
    places = (execution_device(module) for module in model.modules())
    found = next((device for device in places if device is not None), None)
    if found is not None:
        return found
    return next((weight.device for weight in model.parameters()), torch.device("cpu"))


@contextmanager
def leave_weights_away(model: nn.Module) -> Iterator[None]:
    """Let accelerate bring what modules are given to their device, but no weights, for a while.

    Whoever runs the model meanwhile gives it weights.
    """
    before = [(one, one._hf_hook) for one in model.modules() if hasattr(one, "_hf_hook")]
    try:
        for module, hook in before:
            module._hf_hook = _without_weights(hook)
        yield
    finally:
        for module, hook in before:
            module._hf_hook = hook


def _without_weights(hook: Any) -> Any:
    """Return a copy of a hook, or of a row of them, that brings no weights."""
    other = copy.copy(hook)
    if hasattr(hook, "hooks"):
        other.hooks = tuple(map(_without_weights, hook.hooks))
    elif getattr(hook, "offload", False) is True:
        other.offload = False
    return other


def _hooks(module: nn.Module) -> tuple[Any, ...]:
    hook = getattr(module, "_hf_hook", None)
    return (hook, *getattr(hook, "hooks", ()))


def _store(module: nn.Module) -> Mapping[str, Any] | None:
    return next(
        (h.weights_map for h in _hooks(module) if getattr(h, "weights_map", None) is not None), None
    )
