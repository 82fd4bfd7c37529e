"""Operations that a compiled training step makes again for its backward pass.

Left to itself the compiler keeps what matrix products read, and what sums are taken of, however
cheap they are to make again: beside features it kept two of their powers, and what they gave.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def recompute(function: Callable[..., Any], *inputs: Tensor) -> Any:
    """Return what a function gives; a compiled step keeps its inputs for the backward pass alone.

    Run one by one, operations stay as they are: making them again would take as long as the first
    time, where a compiler fuses them into what reads them.
    """
    compiled = torch.compiler.is_compiling() and not torch.compiler.is_exporting()
    if compiled and torch.is_grad_enabled():
        return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)
    return function(*inputs)
