"""Torch's own autocast around an emulated model.

Which operations are done in the low dtype, which in float32 and which in the widest dtype that they
are given is written down in torch, by device, and changes with its version. So nothing is copied
here: parameters are nominally float32, and `torch.autocast` itself runs around the forward pass and
inserts its casts, which are then rounded as the casts of the model's own code are.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

# What torch.autocast casts to, on every device; it refuses others.
FORMATS = ("bf16", "fp16")


@contextmanager
def autocasting(model: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Every forward pass of a model runs under autocast until the block ends.

    By the rules of the device that its parameters are on. What is made of its outputs, and the
    backward pass, are outside, where torch's documentation wants them.

    Source: Own.
    """
    device = next((value.device.type for value in model.parameters()), "cpu")
    entered: list[torch.autocast] = []

    def enter(module: nn.Module, args: Any) -> None:
        entered.append(torch.autocast(device, dtype=dtype))
        entered[-1].__enter__()

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        # A hook that failed before this one entered leaves nothing to end.
        if entered:
            entered.pop().__exit__(None, None, None)

    handles = (
        model.register_forward_pre_hook(enter, prepend=True),
        model.register_forward_hook(leave, always_call=True),
    )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def lowered(arguments: Any) -> Any:
    """Arguments as autocast hands them to an operation of the low dtype; as they are without it.

    Source: Own.
    """

    def lower(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        kind = value.device.type
        if value.dtype == torch.float64 or not torch.is_autocast_enabled(kind):
            return value
        return value.to(torch.get_autocast_dtype(kind))

    return tree_map(lower, arguments)
