"""Take a large tensor a few rows at a time, where it pays.

On a processor a chain of element-wise operations on a large tensor spends its time moving memory.
Over a few rows the chain stays in the cache, and only its input is kept for the backward pass.
"""

import torch
from torch import Tensor

from layerlab.blocks.operations.derivative import is_unwatched

LARGE = 2**18  # numbers; below that all of it stays in the cache anyway
PIECE = 2**18  # numbers; in smaller pieces the calls cost more than the memory


def worthwhile(x: Tensor) -> bool:
    """Return whether working on a few rows at a time pays: for gradients of a large tensor."""
    return large(x) and torch.is_grad_enabled()


def large(x: Tensor) -> bool:
    """Return whether memory is the bottleneck, and operations run as they are written."""
    return x.device.type == "cpu" and x.numel() >= LARGE and is_unwatched()


def rows(width: int) -> int:
    """Return how many rows of this width one piece has.

    Unit: rows.
    """
    return max(16, PIECE // width)


def pieces(x: Tensor) -> tuple[Tensor, ...]:
    """Return views of a few rows each."""
    return x.reshape(-1, x.shape[-1]).split(rows(x.shape[-1]))
