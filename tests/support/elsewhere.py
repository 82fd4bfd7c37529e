"""A model on another device than what is drawn or given, on a machine that has one device only."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from layerlab.loading.model import LoadedModel

JOINS = {"stack", "cat", "matmul", "__matmul__", "__rmatmul__", "linear"}
# Of these a number of the host may be one.
ENTRYWISE = {"__add__", "__sub__", "__mul__", "__truediv__", "add", "sub", "mul", "maximum"}
FETCHED = {"numpy", "__array__"}
# What models name as theirs; that of a tensor of the host has no number.
PLACE = torch.device("cpu", 0)


def _lies_there(tensor: Tensor) -> bool:
    """Return whether a tensor came of a model's weights; what is derived here all does."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    held = getattr(tensor, "held", tensor)  # of an emulated tensor
    return wrapped or any(getattr(one, "there", False) for one in (tensor, held))


class Elsewhere(TorchFunctionMode):
    """Whatever comes of a model's weights is on its device until it is fetched by `cpu`.

    A GPU refuses to join it with a tensor of the host; nothing else of a GPU is needed here.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [one for one in tree_leaves((args, kwargs or {})) if isinstance(one, Tensor)]
        there = [_lies_there(one) for one in given]
        name = getattr(func, "__name__", "")
        if any(there):
            assert name not in FETCHED, f"{name} of what lies on another device"
            assert name not in JOINS or all(there), f"{name} of what lies on two devices"
            wide = [one for one, here in zip(given, there, strict=True) if not here and one.dim()]
            assert name not in ENTRYWISE or not wide, f"{name} of what lies on two devices"
        if func == torch.Tensor.device.__get__ and any(there):
            return PLACE
        result = func(*args, **(kwargs or {}))
        if name == "cpu" or (name == "to" and len(given) > 1 and not there[1]):
            return result.clone() if result is given[0] else result
        sent = any(one is PLACE for one in (*args[1:], *(kwargs or {}).values()))
        if sent and not any(there):
            result = result.clone()
        for one in tree_leaves(result) if sent or any(there) else ():
            if isinstance(one, Tensor):
                _mark(one)
        return result


def _mark(tensor: Tensor) -> Tensor:
    tensor.there = True  # type: ignore[attr-defined]
    return tensor


@contextmanager
def living_elsewhere(model: nn.Module) -> Iterator[None]:
    """Have the weights of a model lie on a device of their own."""
    derive = torch.func.jacrev  # what it gives carries no mark
    with pytest.MonkeyPatch.context() as patch, Elsewhere():
        patch.setattr(LoadedModel, "device", PLACE)
        patch.setattr(torch.func, "jacrev", lambda f: lambda x: _mark(derive(f)(x)))
        for weight in (*model.parameters(), *model.buffers()):
            _mark(weight)
        yield
