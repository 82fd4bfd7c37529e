"""Weighted sums of a few streams, with other weights at every token.

On a processor a batched product calls a kernel for each token, and n streams are too small for it:
the call takes longer than the product. The sum of weighted rows that embeddings are looked up with
takes all tokens in one call; it is the same sum, in the same order.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from layerlab.blocks.operations.chunking import large
from layerlab.blocks.operations.derivative import again, redone
from layerlab.blocks.operations.recompute import recompute, write_gradient, write_result
from layerlab.shapes import Stream, StreamRows, Streams, StreamWeights


def worthwhile(streams: Tensor) -> bool:
    """Return whether to sum by lookup: on small streams, the calls of the plain way cost little.

    A counter of matrix products finds none in a lookup; while it counts, they are multiplied.
    """
    return streams.dtype == torch.float32 and large(streams)


def mix(streams: Streams, rows: StreamRows) -> tuple[Stream, Streams]:
    """Return what the first of the rows reads, and the streams that the other rows mix."""
    if worthwhile(streams):
        entered, mixed = _Mix.apply(streams, rows)
        return entered, mixed
    return _mix(streams, rows)


def add(streams: Streams, weights: StreamWeights, y: Stream) -> tuple[Streams, Stream]:
    """Return the streams with y written into each by its weight, and their mean.

    Large streams are written in place: memory that was not used before costs as much as many sums.
    """
    if worthwhile(streams):
        written, mean = _Add.apply(streams, weights, y)
        return written, mean
    return _add(streams, weights, y)


def plus(gradient: Tensor, x: Tensor, weight: Tensor, rows: Tensor, matrix: Tensor) -> Tensor:
    """Return the sum gradient + weight x + rows @ matrix.

    Large gradients, which `mix` made and no others see, are changed in place.
    """
    rows, width = rows.flatten(0, -2), x.shape[-1]
    if worthwhile(x) and gradient.is_contiguous():
        gradient.addcmul_(x, weight).view(-1, width).addmm_(rows, matrix)
        return gradient
    slope = torch.addcmul(gradient, x, weight).reshape(-1, width)
    return torch.addmm(slope, rows, matrix).view(x.shape)


def _mix(streams: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    if torch.compiler.is_compiling():  # each by itself: so each is made again where it is read
        entered = recompute(_sum_parts, streams, rows[..., :1, :]).squeeze(-2)
        return entered, recompute(_sum_parts, streams, rows[..., 1:, :])
    product = torch.bmm(rows.flatten(0, 1), streams.flatten(0, 1))
    product = product.unflatten(0, streams.shape[:2])
    entered, mixed = product.split([1, rows.shape[-2] - 1], dim=-2)
    return entered.squeeze(-2), mixed


def _add(streams: Tensor, weights: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    if torch.compiler.is_compiling():  # as one operation it would not be made again, but kept
        written = write_gradient(write_result(streams + _outer(weights, y)))
    else:
        outer = weights.flatten(0, 1).unsqueeze(-1), y.flatten(0, 1).unsqueeze(1)
        written = torch.baddbmm(streams.flatten(0, 1), *outer).view(streams.shape)
    return written, written.mean(-2)


class _Mix(torch.autograd.Function):
    """Both sums; backward, the gradient of the streams is written once."""

    @staticmethod
    def forward(streams: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        return _sums(rows[..., :1, :], streams).squeeze(-2), _sums(rows[..., 1:, :], streams)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, entered: Tensor, mixed: Tensor) -> tuple[Tensor | None, ...]:
        streams, rows = ctx.saved_tensors
        if redone(entered, mixed):
            return again(_mix, (streams, rows), (entered, mixed))
        entered = entered.unsqueeze(-2)
        through = _sums(rows[..., 1:, :].transpose(-1, -2), mixed)
        through.addcmul_(rows[..., 0, :].unsqueeze(-1), entered)
        if not ctx.needs_input_grad[1]:
            return through, None
        return through, torch.cat([_products(entered, streams), _products(mixed, streams)], dim=-2)


class _Add(torch.autograd.Function):
    """Backward, the gradient of the streams is handed on as it is."""

    @staticmethod
    def forward(streams: Tensor, weights: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        streams.addcmul_(weights.unsqueeze(-1), y.unsqueeze(-2))
        return streams, _mean(streams)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Any) -> None:
        ctx.mark_dirty(inputs[0])
        ctx.save_for_backward(*inputs[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, written: Tensor | None, mean: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        if written is None and mean is None:
            return None, None, None
        weights, y = ctx.saved_tensors
        through = _join(written, mean, weights)
        if redone(through):
            others = again(_outer, (weights, y), (through,))
            return through, *others
        slope = _sums(weights.unsqueeze(-2), through).squeeze(-2)
        return through, _products(y.unsqueeze(-2), through).squeeze(-2), slope


def _sum_parts(streams: Tensor, rows: Tensor) -> Tensor:
    """Return rows @ streams, sum by sum: a compiler takes all in one pass over the streams."""
    parts = streams.unbind(-2)
    sums: list[Any] = [
        sum(weight * part for weight, part in zip(row.split(1, -1), parts, strict=True))
        for row in rows.unbind(-2)
    ]
    return torch.stack(sums, -2)


def _outer(weights: Tensor, y: Tensor) -> Tensor:
    return weights.unsqueeze(-1) * y.unsqueeze(-2)


def _join(written: Tensor | None, mean: Tensor | None, weights: Tensor) -> Tensor:
    """Join the gradients of the streams and of their mean into that of the streams."""
    if mean is None:
        assert written is not None  # else there is no gradient
        return written
    count = weights.shape[-1]
    share = (mean / count).unsqueeze(-2)
    if written is None:
        return share.expand(*mean.shape[:-1], count, -1).contiguous()
    return written + share


def _sums(rows: Tensor, streams: Tensor) -> Tensor:
    """Return the products rows @ streams."""
    weights = rows.reshape(-1, rows.shape[-1])
    table = streams.reshape(-1, streams.shape[-1])
    found = functional.embedding_bag(
        _places(rows), table, mode="sum", per_sample_weights=weights.contiguous()
    )
    return found.resize_(*rows.shape[:-1], streams.shape[-1])  # a view is not written in place


def _mean(streams: Tensor) -> Tensor:
    count, width = streams.shape[-2:]
    table = streams.reshape(-1, width)
    places = torch.arange(len(table)).view(-1, count)
    return functional.embedding_bag(places, table, mode="mean").view(*streams.shape[:-2], width)


def _products(rows: Tensor, streams: Tensor) -> Tensor:
    """Return the products rows @ streams^T."""
    width, count = rows.shape[-1], streams.shape[-2]
    given = rows.reshape(-1, width)
    bags = torch.arange(len(given))
    found = torch.ops.aten._embedding_bag_per_sample_weights_backward(
        given,
        streams.reshape(-1, width),
        _places(rows, count).flatten(),
        bags * count,
        bags.repeat_interleave(count),
        0,
    )
    return found.view(*rows.shape[:-1], count)


def _places(rows: Tensor, count: int | None = None) -> Tensor:
    """Return, for each row, the places of its token's streams."""
    count = rows.shape[-1] if count is None else count
    many = rows.shape[-2]
    tokens = rows.shape[:-2].numel()
    own = torch.arange(tokens * count).view(tokens, 1, count)
    return own.expand(-1, many, -1).reshape(-1, count)
