"""Counts what a GPU would wait for: numbers that the host reads or sends, operations dispatched.

None needs a GPU. A read is a call that hands numbers of a tensor on the device to Python or to
the host, or whose result is looked at before the next operation can start. A copy is one that
sends numbers of the host to the device: a list as an index, numbers in a list, a tensor of the
host that is moved. All tensors count as on the device but those that were read, or made without
naming a device. What threads of the host do is done in line, so that it is counted too.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from layerlab.observe.tracing import device_schedule

READS = frozenset(
    "cpu item tolist numpy __bool__ __float__ __int__ __index__ __array__ nonzero unique "
    "masked_select argwhere equal allclose eigh eigvalsh svd svdvals matrix_norm cholesky inv "
    "solve".split()
)


@dataclass
class Counts:
    """Host reads, copies to the device and dispatched operations, by name."""

    reads: Counter[str] = field(default_factory=Counter)
    copies: Counter[str] = field(default_factory=Counter)
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
        fetched = name == "cpu" or _fetches(name, args, kwargs)
        result = func(*args, **kwargs)
        masked = name in ("__getitem__", "__setitem__") and _masks(args[1])
        if name in READS or masked or fetched:
            self.found.reads[name] += not hosted
        self.found.copies[name] += _sends(name, args, kwargs)
        if fetched:
            result = result.clone()
        if hosted or fetched:
            for leaf in tree_leaves(result):
                if isinstance(leaf, Tensor):
                    leaf.on_host = True  # type: ignore[attr-defined]
        return result


def _fetches(name: str, args: Any, kwargs: Any) -> bool:
    """Return whether a tensor is moved to the host by its name, or to where another lies."""
    if name not in ("to", "type_as"):
        return False
    towards = next(iter((*args[1:], *kwargs.values())), None)
    return towards == "cpu" if isinstance(towards, str) else getattr(towards, "on_host", False)


def _sends(name: str, args: Any, kwargs: Any) -> bool:
    """Return whether numbers of the host are sent to the device."""
    if name in ("__getitem__", "__setitem__"):
        parts = args[1] if isinstance(args[1], tuple) else (args[1],)
        listed = any(isinstance(one, list) or getattr(one, "on_host", False) for one in parts)
        return not getattr(args[0], "on_host", False) and listed
    if name in ("tensor", "as_tensor"):
        return "device" in kwargs and not isinstance(args[0], Tensor)
    if name in ("to", "type_as", "copy_") and args:
        moved = args[1] if name == "copy_" else args[0]
        towards = args[0] if name == "copy_" else next(iter((*args[1:], *kwargs.values())), None)
        named = isinstance(towards, torch.device) or "device" in kwargs
        onto = isinstance(towards, Tensor) and not getattr(towards, "on_host", False)
        return getattr(moved, "on_host", False) and (named or onto)
    return False


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


class InLine:
    """Does at once what threads would do, whose operations no mode of this thread sees."""

    def __init__(self, threads: int) -> None: ...

    def shutdown(self) -> None: ...

    def submit(self, work: Callable[..., Any], *given: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work(*given))
        return done


@contextmanager
def counted() -> Iterator[Counts]:
    """Count all that happens until the context ends."""
    found = Counts()
    # Nobody is there to be waited for.
    in_line = {"ThreadPoolExecutor": InLine, "Barrier": mock.MagicMock()}
    with mock.patch.multiple(device_schedule, **in_line), _Reads(found), _Operations(found):
        yield found
