"""Tensors that a compiled training step computes again on the way back, or writes once.

Left to itself the compiler saves what matrix products read and what sums are taken of, however
cheap it is to recompute: of PolyNorm it saved two powers of the features, and the result.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def recompute(function: Callable[..., Any], *inputs: Tensor) -> Any:
    """Return the result of a function, of which a compiled step saves the inputs only.

    What is not compiled runs as it is: there, recomputing takes as long as computing, where a
    compiler fuses it into the operations that read the result. So does what is exported.
    """
    if is_compiled() and torch.is_grad_enabled():
        return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)
    return function(*inputs)


def is_fused(x: Tensor) -> bool:
    """Return whether a compiler for GPUs is at work: it takes all sums of a row in one pass.

    That is, if none is a product; and on a processor products are faster.
    """
    return is_compiled() and x.device.type != "cpu"


def is_compiled() -> bool:
    """Return whether a compiler is at work, and not one that exports."""
    return torch.compiler.is_compiling() and not torch.compiler.is_exporting()


def write(x: Tensor) -> Tensor:
    """Return x, which a compiler writes once: each use would compute it anew, else."""
    return x.as_strided(x.shape, x.stride())


class _Written(torch.autograd.Function):
    """The same features, which lie in memory, once; or their gradient does."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, back: bool) -> Tensor:
        return x.view_as(x) if back else write(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, bool], output: Tensor) -> None:
        _, ctx.back = inputs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return write(gradient) if ctx.back else gradient, None


def write_result(x: Tensor) -> Tensor:
    """Return x, which a step compiled for a GPU writes once, forward and where it is made again.

    A sum of a few terms that each are one would be begun in one kernel and ended in another.
    """
    return _Written.apply(x, False) if is_fused(x) else x


def write_gradient(x: Tensor) -> Tensor:
    """Return x, whose gradient the backward pass of a step compiled for a GPU writes once.

    What reads more than four tensors is itself written for those that read it, so several sums over
    a gradient that is computed where it is read write all their terms.
    """
    return _Written.apply(x, True) if is_fused(x) else x
