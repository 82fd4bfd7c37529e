"""Hooks on the modules of a model, for as long as a block of code lasts."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle


@contextmanager
def temporary_hooks(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Remove hooks behind a block of code, also where it fails, or one of them is not set."""
    kept: list[RemovableHandle] = []
    try:
        kept.extend(handles)
        yield
    finally:
        for handle in kept:
            handle.remove()


@contextmanager
def replacing_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Have a module compute something else; its hooks are called as ever."""
    before = vars(module).get("forward")
    vars(module)["forward"] = forward
    try:
        yield
    finally:
        if before is None:
            vars(module).pop("forward", None)
        else:
            vars(module)["forward"] = before
