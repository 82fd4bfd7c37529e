"""Small matrices made doubly stochastic: rows and columns divided by their sums, again and again.

Of a few streams a matrix has so few numbers that a GPU takes longer to start an operation than to
compute it, and there are 80 of them forward and 120 backward. There, each is one kernel in Triton.
"""

import logging
import os
import re
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from layerlab.blocks.operations.derivative import again, is_unwatched, redone
from layerlab.blocks.operations.recompute import is_fused
from layerlab.shapes import Matrices

GPU = "cuda"  # type of device that code in Triton is compiled for
WIDEST = 8  # rows of a matrix that registers hold
# Operations are registered once under a name; a checkpoint's copy of this file has its own.
HOME = re.sub(r"\W", "_", __name__)


def doubly_stochastic(logits: Matrices, iterations: int, guard: float) -> Matrices:
    """Return exp(logits), rows and then columns divided by their sums, again and again.

    Rows and columns of the limit sum to 1. Columns come last, so theirs are exact.

    Source: xie25, equation 9, transposed.
    """
    last = logits.movedim((-2, -1), (0, 1)).contiguous()  # places last: sums become long vectors
    if is_unwatched() or is_fused(last):
        matrix = _Balanced.apply(last, iterations, guard)[0]
    else:
        matrix = _balance(last, iterations, guard)
    return matrix.movedim((0, 1), (-2, -1))


def _balance(logits: Tensor, iterations: int, guard: float) -> Tensor:
    matrix = logits.softmax(1) + guard
    for step in range(1, 2 * iterations):
        total = matrix.sum(0 if step % 2 else 1, keepdim=True)
        matrix = matrix / (total + guard)
    return matrix


class _Balanced(torch.autograd.Function):
    """The same by operations of its own, and its gradient from the sums alone."""

    @staticmethod
    def forward(logits: Tensor, iterations: int, guard: float) -> tuple[Tensor, Tensor, Tensor]:
        matrix, columns, rows = balance(logits, iterations, guard)
        return matrix, columns, rows

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        logits, ctx.iterations, ctx.guard = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(logits, *output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *ignored: Any) -> tuple[Tensor | None, ...]:
        logits, *found = ctx.saved_tensors
        if not torch.compiler.is_compiling() and redone(gradient):

            def plain(x: Tensor) -> Tensor:
                return _balance(x, ctx.iterations, ctx.guard)

            return *again(plain, (logits,), (gradient,)), None, None
        return balance_gradient(gradient.contiguous(), logits, *found, ctx.guard), None, None


@torch.library.custom_op(f"{HOME}::balance", mutates_args=())
def balance(logits: Tensor, iterations: int, guard: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the matrices, and the sums of columns and of rows that divided, guard included."""
    columns, rows = _make_sums(logits, iterations)
    if (kernels := _find_kernels(logits)) is not None:
        return kernels.balance(logits, columns, rows, guard), columns, rows
    matrix = logits.softmax(1) + guard
    for step in range(1, 2 * iterations):
        total = (rows, columns)[step % 2][step // 2]
        torch.sum(matrix, (1, 0)[step % 2], keepdim=True, out=total)
        matrix /= total.add_(guard)
    return matrix, columns, rows


def _allot(logits: Tensor, iterations: int, guard: float) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(logits), *_make_sums(logits, iterations)


balance.register_fake(_allot)


@torch.library.custom_op(f"{HOME}::balance_gradient", mutates_args=())
def balance_gradient(
    gradient: Tensor, logits: Tensor, matrix: Tensor, columns: Tensor, rows: Tensor, guard: float
) -> Tensor:
    """Return the gradient of the logits.

    With G the gradient times the matrix, entry by entry, a division by sums takes G to G less the
    matrix times G's own sums; and the matrix before it is the one after it times the sums.
    """
    if (kernels := _find_kernels(logits)) is not None:
        found: Tensor = kernels.balance_gradient(gradient, logits, matrix, columns, rows, guard)
        return found
    slope, matrix = gradient * matrix, matrix.clone()
    for step in reversed(range(1, 2 * len(columns))):
        slope.addcmul_(slope.sum((1, 0)[step % 2], keepdim=True), matrix, value=-1)
        matrix *= (rows, columns)[step % 2][step // 2]
    start = logits.softmax(1)
    slope *= start / (start + guard).clamp_(min=torch.finfo(start.dtype).tiny)
    return slope.addcmul_(slope.sum(1, keepdim=True), start, value=-1)


def _allot_gradient(gradient: Tensor, logits: Tensor, *others: Any) -> Tensor:
    return torch.empty_like(logits)


balance_gradient.register_fake(_allot_gradient)


def _make_sums(logits: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """Return room for the sums of columns and of rows; the first of rows stays unused."""
    columns = logits.new_empty(iterations, *logits[:1].shape)
    return columns, logits.new_empty(iterations, *logits[:, :1].shape)


def _find_kernels(logits: Tensor) -> ModuleType | None:
    """Return the kernels for these matrices; None where there are none, or none work."""
    known = logits.dtype == torch.float32 and len(logits) <= WIDEST
    known = known and logits.device.type == GPU
    off = os.environ.get("LAYERLAB_KERNEL") == "0"
    return _try_kernels(str(logits.device)) if known and not off else None


@lru_cache
def _try_kernels(device: str) -> ModuleType | None:
    """Import the kernels, and run them once on a device."""
    if find_spec("triton") is None or find_spec("layerlab") is None:
        return None
    # An older triton, no C compiler for its launcher, a driver that it does not know: whatever it
    # is, the operations of torch do the work.
    try:
        # By name: a checkpoint carries this file to where there is no triton, and no layerlab.
        kernels = import_module("layerlab.blocks.operations.sinkhorn_kernels")
        logits = torch.zeros(2, 2, 1, device=device)
        sums = _make_sums(logits, 2)
        matrix = kernels.balance(logits, *sums, 0.0)
        kernels.balance_gradient(matrix, logits, matrix, *sums, 0.0)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        message = (str(error).splitlines() or [""])[0]
        logging.getLogger("layerlab").warning(
            "streams are mixed without Triton, which is slower: %s: %s",
            type(error).__name__,
            message,
        )
        return None
    return kernels
