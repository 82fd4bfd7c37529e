"""Training under emulated rounding: what a format does to a run, on any machine.

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
from typing import Any

import torch
from torch import distributed, nn

from layerlab import UserError
from layerlab.numerics.emulate import Emulation
from layerlab.numerics.place import Place
from layerlab.numerics.regime import Regime, regime
from layerlab.training.section import EmulateSection


@contextmanager
def emulation(
    model: nn.Module, section: EmulateSection, seed: int, update: int, first: int = 0
) -> Iterator["Rounded | None"]:
    """Round forward pass, backward pass, or both, until the block ends; nothing without a format.

    Both passes of a micro-batch belong inside. Gradients are added to those of the parameters when
    the block ends without an error.

    - `both`: as the format would have it. Gradients are rounded like all results.
    - `forward`: the backward pass is that of float32 through the rounded values, where rounding
      counts as the identity (straight through).
    - `backward`: the forward pass is that of float32; each operation of the way back is rounded.

    Stochastic rounding draws weights from a stream of seed and update, so that they are the same
    numbers in every micro-batch, and results from one of seed, update and `first`.

    Args:
        first: number, within the update's batch, of the first sequence of the micro-batch.

    Raises:
        UserError: an unknown format, or a run that cannot be looked into.

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
    _check(model)
    found = regime(section.format, rounding=section.mode, seed=_number(f"weights/{seed}/{update}"))
    rounded = Rounded(model, found, section.where)
    with rounded.running(backward=True):
        rounded.reseed(_number(f"results/{seed}/{update}/{first}"))
        yield rounded
    rounded.hand_over()


class Rounded(Emulation):
    """An emulation that can tell the two passes apart.

    Args:
        passes: `forward`, `backward` or `both`: which are rounded.
    """

    def __init__(self, model: nn.Module, regime: Regime, passes: str) -> None:
        super().__init__(model, regime)
        self.passes = passes

    def chosen(self, place: Place) -> bool:
        """Whether results at a place are rounded now."""
        if self.passes == "both":
            return super().chosen(place)
        return (self.passes == "backward") == _backward() and super().chosen(place)

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
    """Whether a gradient is being computed, and no layer is run again for it."""
    return torch._C._current_autograd_node() is not None and not torch.is_grad_enabled()


def _number(text: str) -> int:
    """Seed of a stream that has a name."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


def _check(model: nn.Module) -> None:
    """Refuse what hides operations from an emulation, or gradients from other processes."""
    if any(_compiled(module) for module in model.modules()):
        raise UserError(
            "train.compile is true: what a compiled layer rounds inside cannot be emulated; "
            "write compile = false"
        )
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise UserError(
            "train.precision is not fp32, and its own rounding would come on top of the emulated "
            'one; write precision = "fp32"'
        )
    if distributed.is_available() and distributed.is_initialized():
        processes = distributed.get_world_size()
        if processes > 1:
            raise UserError(
                f"run.processes is {processes}: emulated gradients are not exchanged between "
                "processes; write processes = 1"
            )


def _compiled(module: Any) -> bool:
    return getattr(module, "_compiled_call_impl", None) is not None
