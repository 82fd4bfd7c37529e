"""Along which axes a running model sums its parameters, as torch's products see them."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

ATEN = torch.ops.aten
# Products, with the places of both factors.
PRODUCTS = {
    ATEN.mm.default: (0, 1),
    ATEN.bmm.default: (0, 1),
    ATEN.addmm.default: (1, 2),
    ATEN.baddbmm.default: (1, 2),
    ATEN.mv.default: (0, 1),
    ATEN._grouped_mm.default: (0, 1),
}


def walked(weight: Tensor, size: int, stride: int) -> Iterator[int]:
    """The axes of a weight that an axis of a view of it goes along."""
    for axis in reversed(range(weight.ndim)):
        if size > 1 and weight.shape[axis] > 1 and weight.stride(axis) == stride:
            yield axis
            size, stride = size // weight.shape[axis], stride * weight.shape[axis]


class Summed(TorchDispatchMode):
    """Hears products with a parameter, or a view of it; those with a copy it cannot tell."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.found: dict[str, set[tuple[int, ...]]] = {}
        self._held = {
            one.untyped_storage().data_ptr(): (name, one) for name, one in model.named_parameters()
        }

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        left, right = PRODUCTS.get(func, (None, None))
        if left is not None:
            self._look(args[left], -1)
            self._look(args[right], max(-2, -args[right].ndim))
        return func(*args, **(kwargs or {}))

    def _look(self, factor: Tensor, axis: int) -> None:
        name, weight = self._held.get(factor.untyped_storage().data_ptr(), ("", factor))
        axes = tuple(walked(weight, factor.shape[axis], factor.stride(axis)))
        if name and axes:
            self.found.setdefault(name, set()).add(axes)
