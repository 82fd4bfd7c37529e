"""A batch that does not fit into memory: it is taken in pieces, and means the same."""

import gc
from collections.abc import Iterator

import torch

from layerlab import UserError
from layerlab.training.batch import Batch

# How those say it that raise a plain RuntimeError: the CPU, Apple's and Huawei's devices, cuBLAS.
_SAYINGS = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
_DEVICES = ("cuda", "npu", "xpu")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, of the machine or of a device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(one in str(error) for one in _SAYINGS)


class Split:
    """How a batch is taken in pieces, so that tokens per update never change.

    Attributes:
        rows: of a batch.
        size: rows of a piece; the last may have fewer.
    """

    def __init__(self, rows: int, size: int | None = None) -> None:
        self.rows = rows
        self.size = min(size or rows, rows)

    def pieces(self, batch: Batch) -> Iterator[tuple[int, Batch]]:
        """Each piece with the number of its first row."""
        for first in range(0, len(batch), self.size):
            yield first, batch[first : first + self.size]

    def halved(self) -> str:
        """Go on with pieces of half as many rows; what to tell the user.

        Raises:
            UserError: a piece is a single sequence already.
        """
        if self.size == 1:
            raise UserError(
                "not even one sequence of a batch fits into memory; write a smaller data.block, "
                "model.width or model.layers"
            )
        self.size = -(-self.size // 2)
        _released()
        return (
            f"out of memory: each batch of {self.rows} sequences is now taken in pieces of "
            f"{self.size}, whose gradients are added up; tokens per update stay the same"
        )


def _released() -> None:
    """Give memory back that a failed pass has left behind."""
    gc.collect()
    for name in _DEVICES:
        device = getattr(torch, name, None)
        if device is not None and device.is_available() and device.is_initialized():
            device.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()
