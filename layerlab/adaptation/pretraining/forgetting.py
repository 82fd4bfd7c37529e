"""Measures forgetting: bits per byte of held-out text, now and at the start."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import log, sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from layerlab.console.units import difference
from layerlab.corpus.batches import IGNORED, EvalBlocks, bits_per_byte
from layerlab.system.torch_settings import evaluation_mode
from layerlab.training.validation import passes, predict

# Fewer documents than these say little about others: then blocks are what an interval is over.
FEWEST = 8
LEVEL = 0.95


@dataclass(frozen=True)
class UnitLosses:
    """The loss of a model on held-out text, unit by unit.

    Attributes:
        nats: of each unit.
        bytes: of each unit; the same for every model.
        per: what a unit is: a document or a block.
    """

    nats: np.ndarray
    bytes: np.ndarray
    per: str

    @property
    def bits_per_byte(self) -> float:
        """Bits per byte of all units together: 0 is certainty, 8 is chance."""
        return bits_per_byte(float(self.nats.sum()), int(self.bytes.sum()))


@dataclass(frozen=True)
class Change:
    """A difference in bits per byte, with an interval over units.

    Attributes:
        value: now minus then: above 0 is forgotten, below 0 learned.
        error: standard error; None where there is one unit alone.
        low: of the interval.
        high: of the interval.
        units: that it is over.
        per: what a unit is.
        level: of the interval.
    """

    value: float
    error: float | None
    low: float | None
    high: float | None
    units: int
    per: str
    level: float = LEVEL

    def __str__(self) -> str:
        text = f"{difference(self.value, 4)} bits per byte"
        if self.low is None or self.high is None:
            return f"{text} (one {self.per} alone: no interval)"
        ends = f"[{difference(self.low, 4)}, {difference(self.high, 4)}]"
        return f"{text} {ends} over {self.units} {self.per}s"


class BitsPerByteEvaluator:
    """Evaluates held-out text of one kind; each token is predicted once."""

    def __init__(self, eval_blocks: EvalBlocks) -> None:
        """Find out which document, or else which block, each predicted token belongs to."""
        self.eval_blocks = eval_blocks
        parts = [self._part(*one) for one in eval_blocks.chosen]
        documents = np.concatenate([own for own, _ in parts])
        blocks = np.repeat(np.arange(len(parts)), [len(own) for own, _ in parts])
        self._sizes = np.concatenate([sizes for _, sizes in parts])
        found = np.unique(documents[self._sizes > 0])
        self.per = "document" if len(found) >= FEWEST else "block"
        self._unit = np.unique(
            documents if self.per == "document" else blocks, return_inverse=True
        )[1]

    def read(
        self,
        model: Any,
        *,
        batch: int = 16,
        part: tuple[int, int] = (0, 1),
        reduce: Callable[[Tensor], Tensor] = lambda sums: sums,
        precision: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> UnitLosses:
        """Read all held-out text without dropout, and restore the mode that the model was in.

        Args:
            batch: blocks of a forward pass.
            part: which process this is, of how many.
            reduce: adds up what the processes found.
            precision: of the forward pass.
        """
        with evaluation_mode(model):
            tokens = reduce(self._read(model, batch, part, precision))
        return self.cost(np.bincount(self._unit, weights=tokens.cpu().numpy()))

    def cost(self, nats: np.ndarray) -> UnitLosses:
        """Return the nats of each unit, with its bytes."""
        return UnitLosses(
            nats, np.bincount(self._unit, weights=self._sizes).astype(np.int64), self.per
        )

    @torch.no_grad()
    def _read(
        self, model: Any, batch: int, part: tuple[int, int], precision: Callable[[], Any]
    ) -> Tensor:
        """Return the nats of each predicted token; those that another process reads are 0."""
        every = list(self.eval_blocks.batches(batch))
        sizes = [int((rows.targets != IGNORED).sum()) for rows in every]
        found = torch.zeros(sum(sizes), dtype=torch.float64)
        for number in passes(len(every), part):
            logits, wanted = predict(model, every[min(number, len(every) - 1)], precision)
            nats = cross_entropy(logits, wanted, ignore_index=IGNORED, reduction="none")
            if number < len(every):
                first = sum(sizes[:number])
                found[first : first + sizes[number]] = nats[wanted != IGNORED].cpu().double()
        return found

    def _part(self, source: int, first: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the documents of the tokens that a block predicts, and their bytes."""
        streams = self.eval_blocks.corpus.validation
        stream = streams[source]
        last = min(first + self.eval_blocks.block, len(stream.tokens) - 1)
        before = sum(one.documents for one in streams[:source])
        own = np.searchsorted(stream.starts, np.arange(first + 1, last + 1), side="right") - 1
        assert stream.ends is not None
        return before + own, np.diff(stream.ends[first : last + 1])


def change(then: UnitLosses, now: UnitLosses, level: float = LEVEL) -> Change:
    """Return bits per byte now minus then, on the same text.

    F = sum_d (now_d - then_d) / (ln 2 * sum_d bytes_d), a ratio of sums over documents d: its
    standard error is that of the residuals now_d - then_d - F ln 2 bytes_d (units drawn at random,
    linearized), its interval Student's with n - 1 degrees of freedom. 0 means nothing is forgotten.

    Unit: bits per byte.

    Args:
        then: of the model before; of the same units.

    Example:
        >>> size = np.array([10, 10])
        >>> before, after = (UnitLosses(n * size * log(2), size, "block") for n in (1, 2))
        >>> change(before, after).value
        1.0
    """
    from scipy.special import stdtrit  # all of scipy.stats would be loaded for it

    gaps, size = (now.nats - then.nats) / log(2), float(now.bytes.sum())
    value, count = float(gaps.sum()) / size, len(gaps)
    if count < 2:
        return Change(value, None, None, None, count, now.per, level)
    left = gaps - value * now.bytes
    error = sqrt(count / (count - 1) * float(left @ left)) / size
    wide = float(stdtrit(count - 1, (1 + level) / 2)) * error
    return Change(value, error, value - wide, value + wide, count, now.per, level)
