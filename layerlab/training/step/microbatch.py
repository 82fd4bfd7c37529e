"""Splits a batch that does not fit into memory into micro-batches of the same mean."""

import gc
from collections.abc import Iterator
from types import TracebackType

import torch

from layerlab.corpus.batches import Batch
from layerlab.errors import UserError
from layerlab.system.hardware import is_out_of_memory

SMALLER = (
    "write a smaller train.micro_batch_size, evaluate.batch_size, data.block_size, model.width or "
    "model.layers, then type the same command again"
)
_DEVICES = ("cuda", "npu", "xpu")


class CatchOutOfMemory:
    """Catches an out-of-memory error, and no other.

    Args:
        bears: even that one only where this is true.

    Attributes:
        found: whether there was one.
    """

    def __init__(self, *, bears: bool = True) -> None:
        self.bears, self.found = bears, False

    def __enter__(self) -> "CatchOutOfMemory":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        self.found = self.bears and error is not None and is_out_of_memory(error)
        return self.found


class MicroBatcher:
    """Splits a batch into micro-batches; tokens per update never change.

    Attributes:
        rows: of a batch.
        size: rows of a piece; the last may have fewer.
    """

    def __init__(self, rows: int, size: int | None = None) -> None:
        self.rows = rows
        self.size = min(size or rows, rows)

    def pieces(self, batch: Batch) -> Iterator[tuple[int, Batch]]:
        """Yield each piece with the number of its first row."""
        for first in range(0, len(batch), self.size):
            yield first, batch[first : first + self.size]

    def halve(self) -> str:
        """Halve the micro-batch; return the note for the user.

        Raises:
            UserError: a piece is a single sequence already.
        """
        if self.size == 1:
            raise UserError(
                "not even one sequence of a batch fits into memory; write a smaller "
                "data.block_size, model.width or model.layers"
            )
        self.size = -(-self.size // 2)
        release_memory()
        return (
            f"out of memory: each batch of {self.rows} sequences is now taken in pieces of "
            f"{self.size}, whose gradients are added up; tokens per update stay the same"
        )


def release_memory() -> None:
    """Free the memory that a failed pass left behind."""
    gc.collect()
    for name in _DEVICES:
        device = getattr(torch, name, None)
        if device is not None and device.is_available() and device.is_initialized():
            device.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()
