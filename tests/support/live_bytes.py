"""Counts the bytes of all tensors that live at once: what a GPU would have to hold.

Every storage that an operation makes is counted until it is freed. What the operating system takes
is not asked: allocators keep what was freed, and the garbage collector is not run.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from layerlab.numerics.emulation.emulated_tensor import EmulatedTensor
from layerlab.numerics.emulation.weight_rows import WeightRows


@dataclass
class LiveBytes:
    """Bytes of the tensors made since counting began: those alive now, and the most at once."""

    now: int = 0
    peak: int = 0
    known: set[int] = field(default_factory=set)

    def add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata in self.known or tensor.is_meta:
            return
        self.known.add(storage._cdata)
        size = storage.nbytes()
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._free, storage._cdata, size)

    def _free(self, place: int, size: int) -> None:
        self.known.discard(place)
        self.now -= size


class _Census(TorchDispatchMode):
    def __init__(self, found: LiveBytes, given: list[Tensor]) -> None:
        super().__init__()
        self.found = found
        self.given = {tensor.untyped_storage()._cdata for tensor in given}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            # These have no numbers of their own, and those that they hold were counted.
            if isinstance(leaf, Tensor) and not isinstance(leaf, (EmulatedTensor, WeightRows)):
                if leaf.untyped_storage()._cdata not in self.given:
                    self.found.add(leaf)
        return result


@contextmanager
def live_bytes(given: list[Tensor]) -> Iterator[LiveBytes]:
    """Count until the context ends; tensors that were there before, and views of them, are not."""
    found = LiveBytes()
    with _Census(found, given):
        yield found
