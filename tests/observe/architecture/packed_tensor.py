"""A weight of eight bits and a scale that is a tensor of its own kind, as torchao's are."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only


class PackedTensor(Tensor):
    """A matrix of bytes and a scale: nothing but `detach` and what `dequantize` allows is done."""

    @staticmethod
    def __new__(cls, numbers: Tensor, scale: Tensor) -> "PackedTensor":
        return torch.Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=scale.dtype)

    def __init__(self, numbers: Tensor, scale: Tensor) -> None:
        self.numbers, self.scale = numbers, scale

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["numbers", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, parts: Any, meta: None, size: Any, stride: Any) -> "PackedTensor":
        return cls(parts["numbers"], parts["scale"])

    def dequantize(self) -> Tensor:  # type: ignore[override]
        return self.numbers * self.scale

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func._opname == "detach":
            return cls(args[0].numbers, args[0].scale)
        if func._opname not in ("t", "mm"):
            raise NotImplementedError(f"{func} of a packed weight")
        args, kwargs = tree_map_only(cls, cls.dequantize, (tuple(args), kwargs or {}))
        return func(*args, **kwargs)


def pack(weight: Tensor) -> PackedTensor:
    """Pack a matrix."""
    scale = weight.detach().abs().max() / 127
    return PackedTensor((weight.detach() / scale).round().to(torch.int8), scale)
