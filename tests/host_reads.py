"""Counts what a GPU would wait for: numbers that the host reads, and operations dispatched.

Neither needs a GPU. A read is a call that hands numbers of a tensor on the device to Python or to
the host, or whose result is looked at before the next operation can start. All tensors count as on
the device but those that were read, or made without naming a device.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

READS = frozenset(
    "cpu item tolist numpy __bool__ __float__ __int__ __index__ __array__ nonzero unique "
    "masked_select argwhere equal allclose eigh eigvalsh svd svdvals matrix_norm cholesky inv "
    "solve".split()
)


@dataclass
class Counts:
    """Host reads and dispatched operations, by name."""

    reads: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)


class _Reads(TorchFunctionMode):
    def __init__(self, found: Counts) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        hosted = all(getattr(tensor, "on_host", False) for tensor in given)
        hosted = hosted and "device" not in kwargs
        name = getattr(func, "__name__", "").removeprefix("linalg_")
        result = func(*args, **kwargs)
        if name in READS or (name in ("__getitem__", "__setitem__") and _masks(args[1])):
            self.found.reads[name] += not hosted
        if name == "cpu":
            result = result.clone()
        if hosted or name == "cpu":
            for leaf in tree_leaves(result):
                if isinstance(leaf, Tensor):
                    leaf.on_host = True  # type: ignore[attr-defined]
        return result


def _masks(index: Any) -> bool:
    """Return whether a tensor is indexed by booleans, whose number must be known."""
    return any(isinstance(one, Tensor) and one.dtype == torch.bool for one in tree_leaves(index))


class _Operations(TorchDispatchMode):
    def __init__(self, found: Counts) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found.operations[str(func)] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def counted() -> Iterator[Counts]:
    """Count all that happens until the context ends."""
    found = Counts()
    with _Reads(found), _Operations(found):
        yield found
