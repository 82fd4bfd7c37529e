"""Initialises the rows of new tokens in an embedding or a head."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

STARTS = {
    "mean": "the mean of the older tokens that write it",
    "mean-resizing": "a draw around the mean of all older tokens, as transformers resizes",
    "first": "the first of the older tokens that write it",
    "random": "the model's own initialisation",
}


@dataclass(frozen=True)
class EmbeddingRows:
    """The rows of an embedding or a head.

    Attributes:
        weight: one row per token.
        bias: one number per token, where there are any.
    """

    weight: Tensor
    bias: Tensor | None = None

    def __getitem__(self, rows: Any) -> "EmbeddingRows":
        return EmbeddingRows(self.weight[rows], None if self.bias is None else self.bias[rows])


@dataclass(frozen=True)
class RowInit:
    """The initialisation of the rows of new tokens.

    Attributes:
        model: whose initialisation is used.
        module: whose rows they are.
        parts: older tokens that write each new one.
        places: ids of the new tokens.
        rows: of the matrix that is being made.
    """

    model: Any
    module: Any
    parts: Sequence[Sequence[int]]
    places: Tensor
    rows: int

    def values(self, kind: str, old: EmbeddingRows) -> EmbeddingRows:
        """Return the rows for the new tokens, in their order.

        mean:           w_new = (1/k) sum_i w_{t_i},   t_1 ... t_k the older tokens that write it
        first:          w_new = w_{t_1}
        mean-resizing:  w_new ~ N(m, 1e-9 C),   m and C mean and covariance of all older rows
        random:         as the model's own initialisation draws them

        A token that the older ones cannot write takes m in place of a mean or a first.

        Args:
            kind: one of `STARTS`.
            old: rows of all older tokens, without padding.
        """
        if kind == "mean":
            return _average(old, self.parts)
        if kind == "first":
            return _average(old, [part[:1] for part in self.parts])
        return self._around(old) if kind == "mean-resizing" else self._draw(old)

    def _around(self, old: EmbeddingRows) -> EmbeddingRows:
        count, width = len(self.parts), old.weight.shape[1]
        found = SimpleNamespace(
            weight=old.weight.new_empty(count, width),
            bias=None if old.bias is None else old.bias.new_empty(count),
        )
        # What `resize_token_embeddings` calls; itself it would leave rows of padding as they are.
        self.model._init_added_embeddings_weights_with_mean(old, found, len(old.weight), count)
        if old.bias is not None:
            self.model._init_added_lm_head_bias_with_mean(old, found, count)
        return EmbeddingRows(found.weight, found.bias)

    def _draw(self, old: EmbeddingRows) -> EmbeddingRows:
        """Draw the rows by the model's own initialisation.

        Ours draw each parameter under its name.
        """
        with _restore_parameters(self.module):
            for name, one in (("weight", old.weight), ("bias", old.bias)):
                if one is not None:
                    fresh = one.new_empty(self.rows, *one.shape[1:])
                    setattr(self.module, name, nn.Parameter(fresh, requires_grad=False))
            self.model._init_weights(self.module)
            bias = None if old.bias is None else self.module.bias.data
            return EmbeddingRows(self.module.weight.data, bias)[self.places]


@contextmanager
def _restore_parameters(module: Any) -> Iterator[None]:
    """Give a module its own parameters back when the block ends."""
    own = dict(module._parameters)
    try:
        yield
    finally:
        for name, parameter in own.items():
            setattr(module, name, parameter)


def _average(old: EmbeddingRows, parts: Sequence[Sequence[int]]) -> EmbeddingRows:
    bias = None if old.bias is None else _means(old.bias[:, None], parts)[:, 0]
    return EmbeddingRows(_means(old.weight, parts), bias)


def _means(
    rows: Float[Tensor, "vocab width"], parts: Sequence[Sequence[int]]
) -> Float[Tensor, "token width"]:
    """Return the means in float32, each of which is rounded once."""
    device = rows.device
    owners = [index for index, part in enumerate(parts) for _ in part]
    flat = [number for part in parts for number in part]
    wide = torch.promote_types(rows.dtype, torch.float32)
    sums = torch.zeros(len(parts), rows.shape[1], dtype=wide, device=device)
    sums.index_add_(0, torch.tensor(owners, dtype=torch.long, device=device), rows[flat].to(wide))
    counts = torch.tensor([len(part) for part in parts], device=device)
    found = sums / counts.clamp(min=1)[:, None]
    if (counts == 0).any():
        found[counts == 0] = rows.to(wide).mean(0)
    return found.to(rows.dtype)
