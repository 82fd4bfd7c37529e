"""Parameters where they really are, also those that accelerate offloads until they run."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


def parameter(module: nn.Module, name: str) -> Tensor | None:
    """Return a parameter of `module` itself, from the offload store if it is not in memory."""
    tensor = getattr(module, name, None)
    if not isinstance(tensor, Tensor):
        return None
    if tensor.device.type != "meta":
        return tensor.detach()
    store = _store(module)
    return store[name].detach() if store is not None and name in store else tensor


def _store(module: nn.Module) -> Mapping[str, Any] | None:
    hook = getattr(module, "_hf_hook", None)
    hooks = (hook, *getattr(hook, "hooks", ()))
    return next((h.weights_map for h in hooks if getattr(h, "weights_map", None) is not None), None)
