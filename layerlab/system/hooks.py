"""Hooks on the modules of a model, for as long as a block of code lasts."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch.utils.hooks import RemovableHandle


@contextmanager
def temporary_hooks(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Remove hooks behind a block of code, also where it fails."""
    kept = list(handles)
    try:
        yield
    finally:
        for handle in kept:
            handle.remove()
