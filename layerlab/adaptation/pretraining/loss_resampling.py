"""Resamples batches by their loss: the multi-round training of PanGu-π Pro."""

from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from layerlab.adaptation.pretraining.callbacks import ProcessGroup
from layerlab.corpus.batches import BatchOrder
from layerlab.system.torch_settings import evaluation_mode
from layerlab.training.validation import passes, predict

ALONE = ProcessGroup()


def draw_hard_batches(losses: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Draw the numbers of the batches that are read again, in their order.

    p_i = exp(l_i) / sum_j exp(l_j); `count` of them are drawn one after another without
    replacement. The draw is that of the largest l_i + g_i with g_i of a Gumbel distribution, which
    has the same law and needs no sum of exponentials: no loss is too large for it.

    Source: tang24, section on multi-round training (N_0 of N batches by the loss of the model
        before); the Gumbel form: Own.

    Args:
        losses: of each batch, in nats per token, of the model of the round before.

    Example:
        >>> draw_hard_batches(np.array([0.0, 1000.0, 0.0, 1000.0]), 2, seed=1).tolist()
        [1, 3]
    """
    key = blake2b(f"{seed}/resampling".encode(), digest_size=16).digest()
    raw = np.random.Philox(key=int.from_bytes(key)).random_raw(len(losses))
    # Strictly between 0 and 1, by numbers that no version of numpy may change.
    uniform = ((raw >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    keys = np.asarray(losses, np.float64) - np.log(-np.log(uniform))
    chosen = np.argsort(-keys, kind="stable")[:count]
    return np.sort(chosen)


@torch.no_grad()
def batch_losses(
    model: Any,
    order: BatchOrder,
    batches: int,
    size: int,
    *,
    micro: int | None = None,
    group: ProcessGroup = ALONE,
) -> np.ndarray:
    """Return the mean nats per token of each batch of an order under a model that is not trained.

    l_i = sum_t -log p(t) / (size * block): of batch i, over all tokens t that its blocks predict.

    Source: tang24, section on multi-round training.
    Unit: nats per token.

    Args:
        batches: so many, from the first.
        size: blocks of a batch.
        micro: blocks of a forward pass; a whole batch where it is left out.
        group: which process this is, and how the forward pass is made.
    """
    found = torch.zeros(batches, dtype=torch.float64)
    with evaluation_mode(model):
        for number in passes(batches, group.part):
            rows = order.batch(min(number, batches - 1), size)
            for first in range(0, size, micro or size):
                some = rows[first : first + (micro or size)]
                nats = cross_entropy(*predict(model, some, group.precision), reduction="sum")
                if number < batches:
                    found[number] += float(nats) / (size * order.block)
    return group.reduce(found).cpu().numpy()
