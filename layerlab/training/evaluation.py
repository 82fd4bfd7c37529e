"""Loss on held-out text: each token is predicted once, in blocks that are the same for all runs."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from layerlab.training.batch import IGNORED, Held, bits_per_byte


@dataclass(frozen=True, kw_only=True)
class Score:
    """How well held-out text is predicted.

    Attributes:
        nats: mean negative log-likelihood of a token.
        bits_per_byte: the same per byte of text, which tokenizers share.
        accuracy: share of tokens that are the likeliest.
    """

    nats: float
    bits_per_byte: float
    accuracy: float


@torch.no_grad()
def evaluate(
    model: Any,
    held: Held,
    *,
    batch: int,
    precision: Callable[[], AbstractContextManager[Any]] = nullcontext,
    reduce: Callable[[Tensor], Tensor] = lambda sums: sums,
    part: tuple[int, int] = (0, 1),
) -> Score:
    """Read the held-out blocks, without dropout, and leave the model in the mode it was in.

    Args:
        precision: of the forward pass.
        reduce: adds up what several processes found.
        part: which process this is, of how many.
    """
    device = next(model.parameters()).device
    learning = model.training
    model.eval()
    rank, processes = part
    sums = torch.zeros(3, dtype=torch.float64)
    try:
        every = list(held.batches(batch))
        # Where weights are shared out, all processes gather them: each makes as many passes.
        for number in range(rank, -(-len(every) // processes) * processes, processes):
            rows = every[min(number, len(every) - 1)]
            with precision():
                logits = model(
                    input_ids=rows.inputs.to(device),
                    position_ids=None if rows.positions is None else rows.positions.to(device),
                    use_cache=False,
                ).logits
            if number < len(every):
                sums += _sums(logits, rows.targets.to(device)).to(sums)
    finally:
        model.train(learning)
    nats, right, count = reduce(sums).tolist()
    return Score(
        nats=nats / count,
        bits_per_byte=bits_per_byte(nats, held.bytes),
        accuracy=right / count,
    )


def _sums(logits: Tensor, targets: Tensor) -> Tensor:
    """Nats, likeliest tokens that are right, and tokens."""
    rows, wanted = logits.flatten(0, 1).float(), targets.flatten()
    nats = cross_entropy(rows, wanted, ignore_index=IGNORED, reduction="sum")
    kept = wanted != IGNORED
    right = (rows.argmax(-1) == wanted) & kept
    return torch.stack([nats.double(), right.sum().double(), kept.sum().double()])
