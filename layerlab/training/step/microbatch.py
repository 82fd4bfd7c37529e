"""Splits a batch that does not fit into memory into micro-batches of the same mean."""

from collections.abc import Iterator

from layerlab.corpus.batches import Batch
from layerlab.errors import UserError
from layerlab.system.hardware import release_memory

SMALLER = (
    "write a smaller train.micro_batch_size, evaluate.batch_size, data.block_size, model.width or "
    "model.layers, then type the same command again"
)


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
