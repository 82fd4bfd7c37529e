"""Doubly stochastic matrices, and their gradient, as one Triton kernel each on a GPU.

Each thread has a matrix to itself, in its registers: it exchanges nothing, and touches memory for
what it is given and what it returns alone.

What is proved runs in Triton's interpreter on a processor, and compiles for compute capability 9.0
without spills; no GPU has timed it yet.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# Matrices of a program; the interpreter runs one program after the other, each in NumPy.
BLOCK, WARPS = 1 << 12 if triton.knobs.runtime.interpret else 32, 1
# Were it known to be even, a thread would read one number of several matrices at once.
UNKNOWN = ["matrices"]


@triton.jit
def _places(count, matrices, side: tl.constexpr, block: tl.constexpr):
    """Return where a program's matrices lie, and which numbers; and the same of columns and rows.

    What a matrix leaves free of a side that is a power of two is kept at zero.
    """
    place = tl.program_id(0) * block + tl.arange(0, block)[None, None, :]
    row, column = tl.arange(0, side)[:, None, None], tl.arange(0, side)[None, :, None]
    columns, rows = (column < count) & (place < matrices), (row < count) & (place < matrices)
    at = (row * count + column) * matrices + place
    return at, columns & rows, column * matrices + place, columns, row * matrices + place, rows


@triton.jit
def _start(logits, at, held):
    """Return the softmax of every row."""
    x = tl.load(logits + at, held, other=-1e30)
    shares = tl.where(held, tl.exp(x - tl.max(x, 1, keep_dims=True)), 0.0)
    return shares / tl.maximum(tl.sum(shares, 1, keep_dims=True), 1e-30)


@triton.jit
def _divide(matrix, sums, at, kept, guard, axis: tl.constexpr):
    """Divide by the sums along an axis, and store them."""
    total = tl.where(kept, tl.sum(matrix, axis, keep_dims=True) + guard, 1.0)
    tl.store(sums + at, total, kept)
    return matrix / total


@triton.jit
def _go_back(slope, matrix, sums, at, kept, axis: tl.constexpr):
    """Return gradient and matrix before a division."""
    slope -= tl.sum(slope, axis, keep_dims=True) * matrix
    return slope, matrix * tl.load(sums + at, kept, other=0.0)


@triton.jit(do_not_specialize=UNKNOWN)
def _balance(
    logits, out, columns, rows, count, matrices, iterations, guard,
    side: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    at, held, at_column, of_columns, at_row, of_rows = _places(count, matrices, side, block)
    matrix = tl.where(held, _start(logits, at, held) + guard, 0.0)
    matrix = _divide(matrix, columns, at_column, of_columns, guard, 0)
    for _ in range(1, iterations):
        columns += count * matrices
        rows += count * matrices
        matrix = _divide(matrix, rows, at_row, of_rows, guard, 1)
        matrix = _divide(matrix, columns, at_column, of_columns, guard, 0)
    tl.store(out + at, matrix, held)


@triton.jit(do_not_specialize=UNKNOWN)
def _balance_gradient(
    gradient, logits, balanced, out, columns, rows, count, matrices, iterations, guard,
    side: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    at, held, at_column, of_columns, at_row, of_rows = _places(count, matrices, side, block)
    matrix = tl.load(balanced + at, held, other=0.0)
    slope = tl.load(gradient + at, held, other=0.0) * matrix
    columns += (iterations - 1) * count * matrices
    rows += (iterations - 1) * count * matrices
    for _ in range(1, iterations):
        slope, matrix = _go_back(slope, matrix, columns, at_column, of_columns, 0)
        slope, matrix = _go_back(slope, matrix, rows, at_row, of_rows, 1)
        columns -= count * matrices
        rows -= count * matrices
    slope -= tl.sum(slope, 0, keep_dims=True) * matrix
    start = _start(logits, at, held)
    slope *= start / tl.maximum(start + guard, 1.2e-38)
    slope -= tl.sum(slope, 1, keep_dims=True) * start
    tl.store(out + at, slope, held)


def balance(logits: Tensor, columns: Tensor, rows: Tensor, guard: float) -> Tensor:
    """Return matrices made doubly stochastic, and fill in what columns and rows were divided by.

    Args:
        logits: (n, n, ...), float32 and contiguous, as all that is given.
        columns: (iterations, 1, n, ...).
        rows: (iterations, n, 1, ...), of which the first is left as it is.
        guard: added to sums, and to the matrices before the first.
    """
    out = torch.empty_like(logits)
    _launch(_balance, logits, out, columns, rows, guard=guard)
    return out


def balance_gradient(
    gradient: Tensor, logits: Tensor, matrix: Tensor, columns: Tensor, rows: Tensor, guard: float
) -> Tensor:
    """Return the gradient of the logits, from what `balance` was given and found."""
    out = torch.empty_like(logits)
    _launch(_balance_gradient, gradient, logits, matrix, out, columns, rows, guard=guard)
    return out


def _launch(kernel: Any, *tensors: Tensor, guard: float) -> None:
    """Run a kernel on the device of its tensors, whichever is the current one."""
    first, columns = tensors[0], tensors[-2]
    count, matrices = len(first), first[0, 0].numel()
    sizes = (count, matrices, len(columns))
    kind = {"side": triton.next_power_of_2(count), "block": BLOCK, "num_warps": WARPS}
    with torch.cuda.device_of(first):
        kernel[(triton.cdiv(matrices, BLOCK),)](*tensors, *sizes, guard, **kind)
