"""The language-modelling loss, with its gradient made while the logits are at hand."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from layerlab.blocks.operations.derivative import is_unwatched
from layerlab.errors import UserError

IGNORED = -100
ROWS = 64  # that many rows of a large vocabulary stay in the processor's cache


def causal_loss(
    logits: Tensor,
    labels: Tensor,
    vocab_size: int,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = IGNORED,
    shift_labels: Tensor | None = None,
    **ignored: Any,
) -> Tensor:
    """Return the mean negative log-likelihood of each next token, in nats.

    The function is called as transformers calls a loss.

    Unit: nats per token.

    Args:
        num_items_in_batch: divides the sum instead of the number of labels, where one update spans
            several batches.
        shift_labels: labels that are shifted already.

    Raises:
        UserError: a label is no entry of the vocabulary; where the loss is torch's own, it says so.
    """
    if shift_labels is None:
        shift_labels = functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    rows = logits.reshape(-1, vocab_size)
    targets = shift_labels.reshape(-1).to(rows.device)
    count = (targets != ignore_index).sum() if num_items_in_batch is None else num_items_in_batch
    if not _worthwhile(rows):
        total = functional.cross_entropy(
            rows.to(torch.promote_types(rows.dtype, torch.float32)),
            targets,
            ignore_index=ignore_index,
            reduction="sum",
        )
        return total / count
    _check_labels(targets, vocab_size, ignore_index)
    if rows.dtype == torch.float16:  # too narrow for a gradient that a scaler has yet to enlarge
        rows = rows.float()
    mean: Tensor = _CrossEntropy.apply(rows, targets, ignore_index, count)[0]
    return mean


def _worthwhile(logits: Tensor) -> bool:
    """Return whether our own loss pays: not on a GPU or under a compiler, which do as well.

    Nor does it in float64, which is asked for its digits.
    """
    return (
        logits.requires_grad
        and logits.device.type == "cpu"
        and logits.dtype != torch.float64
        and is_unwatched()
    )


def _check_labels(targets: Tensor, vocab_size: int, ignored: int) -> None:
    """Refuse labels that stand for no token."""
    wrong = ((targets < 0) | (targets >= vocab_size)) & (targets != ignored)
    if bool(wrong.any()):
        label = int(targets[wrong][0])
        raise UserError(
            f"a label is {label}; expected 0 to {vocab_size - 1}, or {ignored} where no loss is "
            f"wanted: type labels[labels == {label}] = {ignored}"
        )


class _CrossEntropy(torch.autograd.Function):
    """Log-sum-exp minus the label's logit, summed and divided by a count.

    Each row of logits is read from memory once: its gradient is made beside its loss, in float32,
    and kept in the logits' precision.
    """

    @staticmethod
    def forward(
        logits: Tensor, targets: Tensor, ignored: int, count: Tensor | int
    ) -> tuple[Tensor, Tensor]:
        gradient = torch.empty_like(logits)
        total = torch.zeros((), dtype=torch.float64)
        for start in range(0, len(logits), ROWS):
            rows = slice(start, start + ROWS)
            part, wanted = logits[rows].float(), targets[rows, None]
            slope = torch.softmax(part, dim=-1)
            kept = wanted != ignored
            index = wanted.where(kept, 0)
            largest = part.amax(-1, keepdim=True)
            loss = largest - slope.amax(-1, keepdim=True).log() - part.gather(1, index)
            total += (loss * kept).sum()
            slope.scatter_add_(1, index, slope.new_full(index.shape, -1.0))
            torch.mul(slope, kept / count, out=gradient[rows])
        return (total / count).float(), gradient

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        logits, targets, ctx.ignored, ctx.count = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)  # or zeros are made for the gradient's gradient
        ctx.save_for_backward(logits, targets, output[1])

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        logits, targets, gradient = ctx.saved_tensors
        if torch.is_grad_enabled():  # a derivative of this derivative is wanted
            total = functional.cross_entropy(
                logits.float(), targets, ignore_index=ctx.ignored, reduction="sum"
            )
            (slope,) = torch.autograd.grad(total / ctx.count, logits, upstream, create_graph=True)
            return slope, None, None, None
        return gradient if upstream == 1 else gradient * upstream, None, None, None
