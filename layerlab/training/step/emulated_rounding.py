"""Training under emulated rounding: the effect of a number format on a run, on any machine.

What is rounded is the arithmetic of the passes. Parameters, their gradients once added up, the
moments and the update itself stay in float32, as master weights do in real training of low
precision: a weight is rounded when a pass uses it, never where it is kept. What the model's code
widens to float32 (norms, softmax, the loss) stays there, as on real hardware. Nothing is scaled:
gradients too small for the format become 0, so a narrow one (`fp8_e4m3`) is a worst case, and
`mxfp8_e4m3`, whose blocks bring their own scales, is what machines do.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from layerlab.numerics.emulation.arithmetic import EmulatedArithmetic, make_arithmetic
from layerlab.numerics.emulation.emulate import Emulation
from layerlab.numerics.emulation.op_site import OpSite
from layerlab.recipes.training_sections import EmulateSection


@contextmanager
def emulation(
    model: nn.Module, section: EmulateSection, seed: int, update: int, first: int = 0
) -> Iterator["PassEmulation | None"]:
    """Round forward pass, backward pass, or both, until the block ends; nothing without a format.

    Both passes of a micro-batch belong inside. Gradients are added to those of the parameters when
    the block ends without an error. Neither autocast, nor compiled layers, nor several processes go
    with it: `permission.permit` refuses a recipe with them.

    - `both`: as the format would have it. Gradients are rounded like all results.
    - `forward`: the backward pass is that of float32 through the rounded values, where rounding
      counts as the identity (straight through).
    - `backward`: the forward pass is that of float32; each operation of the way back is rounded.

    Stochastic rounding draws weights from a stream of seed and update, so that they are the same
    numbers in every micro-batch, and results from one of seed, update and `first`.

    Args:
        first: number, within the update's batch, of the first sequence of the micro-batch.

    Raises:
        UserError: an unknown format.

    Example:
        >>> import layerlab
        >>> model = layerlab.build("llama", width=16, layers=1, heads=2, vocab=32, context=8)
        >>> ids = torch.arange(8)[None]
        >>> with emulation(model, EmulateSection(format="bf16"), seed=0, update=0):
        ...     model(ids, labels=ids).loss.backward()
        >>> weight = model.lm_head.weight.grad
        >>> bool((weight == weight.bfloat16()).all())
        True
    """
    if section.format is None:
        yield None
        return
    found = make_arithmetic(
        section.format, rounding=section.mode, seed=_number(f"weights/{seed}/{update}")
    )
    rounded = PassEmulation(model, found, section.where)
    with rounded.running(backward=True):
        rounded.reseed(_number(f"results/{seed}/{update}/{first}"))
        yield rounded
    rounded.hand_over()


class PassEmulation(Emulation):
    """An emulation that can tell the two passes apart.

    Args:
        passes: `forward`, `backward` or `both`: which are rounded.
    """

    def __init__(self, model: nn.Module, arithmetic: EmulatedArithmetic, passes: str) -> None:
        super().__init__(model, arithmetic)
        self.passes = passes

    def is_chosen(self, site: OpSite) -> bool:
        """Return whether results at a place are rounded now."""
        if self.passes == "both":
            return super().is_chosen(site)
        return (self.passes == "backward") == _backward() and super().is_chosen(site)

    def reseed(self, seed: int) -> None:
        """Draw from another stream from now on."""
        self._generator.manual_seed(seed)

    def hand_over(self) -> None:
        """Add the gradients of this pass to those of the parameters, in the parameters' dtype."""
        for name, gradient in self.gradients.items():
            parameter = self.model.get_parameter(name)
            gradient = gradient.to(parameter.dtype)
            # What the pass held is its own: an update in place may not write into it.
            parameter.grad = (
                gradient.clone() if parameter.grad is None else parameter.grad + gradient
            )


def _backward() -> bool:
    """Return whether a backward pass is running, recomputed layers left out."""
    return torch._C._current_autograd_node() is not None and not torch.is_grad_enabled()


def _number(text: str) -> int:
    """Return the seed of a named random stream."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1
