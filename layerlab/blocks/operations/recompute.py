"""Recomputation in the backward pass of a compiled training step.

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
    compiled = torch.compiler.is_compiling() and not torch.compiler.is_exporting()
    if compiled and torch.is_grad_enabled():
        return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)
    return function(*inputs)
