"""Validation loss: each held-out token is predicted once, in the same blocks for all runs."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from layerlab.blocks.operations import chunking
from layerlab.corpus.batches import IGNORED, Batch, EvalBlocks, bits_per_byte
from layerlab.errors import UserError
from layerlab.system.hardware import CatchOutOfMemory, release_memory
from layerlab.system.torch_settings import evaluation_mode
from layerlab.training.accelerator import RunAccelerator
from layerlab.training.sharding import is_sharded


@dataclass(frozen=True, kw_only=True)
class ValidationResult:
    """Validation loss and accuracy.

    Attributes:
        nats: mean negative log-likelihood of a token.
        bits_per_byte: the same per byte of text, which tokenizers share; None where the text does
            not come back from its tokens.
        accuracy: share of tokens that are the likeliest.
        blocks: nats per token of each block, and its tokens: what the choice of the text adds to a
            difference shows in them.
    """

    nats: float
    bits_per_byte: float | None
    accuracy: float
    blocks: Mapping[str, list[Any]]

    def means(self) -> dict[str, float | None]:
        """Return the means of the whole text alone."""
        return {name: getattr(self, name) for name in ("nats", "bits_per_byte", "accuracy")}


class TooLarge(UserError):
    """Memory ran out for a validation pass, in at least one process."""


@torch.no_grad()
def evaluate(
    model: Any,
    eval_blocks: EvalBlocks,
    *,
    batch: int,
    precision: Callable[[], AbstractContextManager[Any]] = nullcontext,
    reduce: Callable[[Tensor], Tensor] = lambda sums: sums,
    part: tuple[int, int] = (0, 1),
) -> ValidationResult:
    """Evaluate a model on held-out blocks without dropout; its mode is restored.

    Args:
        precision: of the forward pass.
        reduce: adds up what several processes found.
        part: which process this is, of how many.

    Raises:
        TooLarge: memory does not hold so many blocks.
    """
    every = list(eval_blocks.batches(batch))
    # Nats, likeliest tokens that are right, and tokens of each block.
    sums = torch.zeros(len(eval_blocks), 3, dtype=torch.float64)
    # There, too, the others would wait for one that gave up a pass: its error ends it.
    short = CatchOutOfMemory(bears=part[1] == 1 or not is_sharded(model))
    with evaluation_mode(model), short:
        for number in passes(len(every), part):
            found = _sums(model, every[min(number, len(every) - 1)], precision)
            if number < len(every):
                sums[number * batch : number * batch + len(found)] = found
    failed = torch.tensor([short.found], dtype=torch.float64)
    reduced = reduce(torch.cat([sums.flatten(), failed])).cpu()
    if reduced[-1]:
        raise TooLarge(
            f"held-out text does not fit into memory {batch} blocks at a time; write a smaller "
            "evaluate.batch_size, data.block_size, model.width or model.layers"
        )
    table = reduced[:-1].view(-1, 3)
    nats, right, count = table.sum(0).tolist()
    means = (table[:, 0] / table[:, 2]).tolist()
    return ValidationResult(
        nats=nats / count,
        bits_per_byte=None if eval_blocks.corpus.loss else bits_per_byte(nats, eval_blocks.bytes),
        accuracy=right / count,
        blocks={
            "nats": [round(one, 7) for one in means],
            "tokens": [int(one) for one in table[:, 2]],
        },
    )


def passes(count: int, part: tuple[int, int]) -> range:
    """Return which passes this process computes.

    One from `count` on stands for no rows of its own.

    Where weights are shared out, all processes gather them: each makes as many passes.

    Args:
        part: which process this is, of how many.

    Example:
        >>> [list(passes(3, (rank, 2))) for rank in range(2)]
        [[0, 2], [1, 3]]
    """
    rank, processes = part
    return range(rank, -(-count // processes) * processes, processes)


def predict(
    model: Any, rows: Batch, precision: Callable[[], AbstractContextManager[Any]]
) -> tuple[Tensor, Tensor]:
    """Return the float32 logits of a batch, and the tokens to predict."""
    device = next(model.parameters()).device
    with precision():
        logits = model(
            input_ids=rows.inputs.to(device),
            position_ids=None if rows.positions is None else rows.positions.to(device),
            use_cache=False,
        ).logits
    return logits.flatten(0, 1).float(), rows.targets.to(device).flatten()


class Validator:
    """Evaluates a run on its held-out text.

    Attributes:
        size: blocks of a pass; half as many from when they do not fit into memory.
    """

    def __init__(self, eval_blocks: EvalBlocks, accelerator: RunAccelerator, size: int) -> None:
        self.eval_blocks, self.accelerator, self.size = eval_blocks, accelerator, size

    def score(self, model: Any, note: Callable[[str], None]) -> ValidationResult:
        """Evaluate the model on the held-out text.

        Args:
            note: tells the user of smaller passes.

        Raises:
            TooLarge: not even a single block fits.
        """
        while True:
            try:
                return self._score(model)
            except TooLarge:
                if self.size == 1:
                    raise
            self.size = -(-self.size // 2)
            release_memory()
            note(f"out of memory: held-out text is now read in batches of {self.size}")

    def _score(self, model: Any) -> ValidationResult:
        return evaluate(
            model,
            self.eval_blocks,
            batch=self.size,
            precision=self.accelerator.precision,
            reduce=self.accelerator.sum,
            part=(self.accelerator.rank, self.accelerator.processes),
        )


def _sums(model: Any, rows: Batch, precision: Callable[[], AbstractContextManager[Any]]) -> Tensor:
    """Return for each row the sum of nats, of correct top tokens, and of tokens, on the CPU."""
    flat, wanted = predict(model, rows, precision)
    # What a processor takes at once stays in its cache; a token's loss hangs on no other's.
    size = chunking.rows(flat.shape[-1]) if flat.device.type == "cpu" else len(flat)
    pieces = zip(flat.split(size), wanted.split(size), strict=True)
    # Not every device has double precision.
    parts = torch.cat([_score(*piece) for piece in pieces]).cpu().double()
    return parts.view(*rows.targets.shape, 3).sum(1)


def _score(logits: Tensor, wanted: Tensor) -> Tensor:
    """Return nats, whether the likeliest token is right, and whether one is asked for."""
    nats = cross_entropy(logits, wanted, ignore_index=IGNORED, reduction="none")
    kept = wanted != IGNORED
    right = (logits.argmax(-1) == wanted) & kept
    return torch.stack([nats, right.float(), kept.float()], dim=-1)
