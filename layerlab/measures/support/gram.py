"""Gram matrices: of large ones the half below the diagonal is computed, and mirrored."""

import torch
from jaxtyping import Float
from torch import Tensor

LARGE = 1024
"""Rows from which on that is faster; of fewer, the product is taken in one piece."""

PARTS = 8


def form_gram(
    rows: Float[Tensor, "... row column"], out: Float[Tensor, "... row row"] | None = None
) -> Float[Tensor, "... row row"]:
    """Return A A^T of every matrix A, outside autograd.

    Args:
        out: what it is written into.

    Example:
        >>> form_gram(torch.tensor([[3.0, 4.0], [0.0, 1.0]])).tolist()
        [[25.0, 4.0], [4.0, 1.0]]
    """
    rows, size = rows.detach(), rows.shape[-2]
    gram = rows.new_empty(*rows.shape[:-1], size) if out is None else out
    step = max(size if size < LARGE else -(-size // PARTS), 1)
    for start in range(0, size, step):
        own, below = slice(start, start + step), slice(start)
        until = rows[..., : own.stop, :]
        torch.matmul(rows[..., own, :], until.mT, out=gram[..., own, : own.stop])
        gram[..., below, own] = gram[..., own, below].mT
    return gram
