"""Rounding each element by itself to a floating-point format."""

from typing import Any

import torch
from torch import Tensor

from layerlab.numerics.formats.choose_kernel import has_memory, scalar_launch
from layerlab.numerics.formats.formats import Format
from layerlab.numerics.formats.grid import HALVES, Grid, Mode, grid
from layerlab.numerics.formats.round_reference import in_torch, noise


class Rounding:
    """Rounds float32 and float64 to a format: a function that has been looked up once.

    It is called after every operation of an emulated model, so that the path for an ordinary tensor
    comes first and does nothing twice.

    Args:
        spare: keep what code writes as a mask.
    """

    def __init__(
        self,
        format: Format,
        mode: Mode = "nearest",
        generator: torch.Generator | None = None,
        spare: bool = False,
    ) -> None:
        self.format = format
        self.mode = mode
        self.generator = generator
        self.spare = spare
        self._launches: dict[tuple[torch.dtype, str], Any] = {}

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the rounded tensor; gradients are left to the caller."""
        launch = self._launches.get((x.dtype, "cpu"))
        if (
            launch is not None
            and (out is None or out is x)
            and type(x) is Tensor
            and x.is_cpu
            and x.is_contiguous()
            and not x.is_neg()
            and not torch.compiler.is_compiling()
        ):
            target = torch.empty_like(x) if out is None else x
            if self._try_kernel(launch, x, target):
                return target
        return self._general(x, out)

    def _try_kernel(self, launch: Any, x: Tensor, out: Tensor) -> bool:
        """Round with the kernel and return whether it worked.

        Tensors inside a transform of functions have no address.
        """
        if type(out) is not Tensor:
            return False
        try:
            launch(x, out, launch.draw(x, self.generator))
        except RuntimeError:
            if not x.is_cpu:  # there it is the device that failed
                raise
            return False
        return True

    def _general(self, x: Tensor, out: Tensor | None) -> Tensor:
        x = x.detach().resolve_neg()
        if x.dtype in HALVES:
            narrow = self(x.float()).to(x.dtype)
            return narrow if out is None else out.copy_(narrow)
        if out is None:
            out = torch.empty_like(x)
        launch = self._launch(x) if has_memory(x) else None
        if launch is None:
            self._in_torch(x, out)
        elif self._same_layout(x, out):
            if not self._try_kernel(launch, x, out):
                self._in_torch(x, out)
        else:
            contiguous = x.contiguous()
            fresh = torch.empty_like(contiguous)
            if not self._try_kernel(launch, contiguous, fresh):
                self._in_torch(contiguous, fresh)
            out.copy_(fresh)
        return out

    def _in_torch(self, x: Tensor, out: Tensor) -> None:
        drawn = noise(x, self.generator) if self.mode == "stochastic" else None
        in_torch(x, out, self._grid(x.dtype), self.mode, drawn)

    def _same_layout(self, x: Tensor, out: Tensor) -> bool:
        """Return whether the elements of both lie in one piece of memory, in the same order."""
        if out.is_neg():
            return False
        if x.is_contiguous() and out.is_contiguous():
            return True
        # What is drawn for an element depends on its place in the tensor, not in memory.
        dense = torch.empty_like(x).stride() == x.stride()
        return dense and out.stride() == x.stride() and self.mode != "stochastic"

    def _launch(self, x: Tensor) -> Any:
        key = x.dtype, str(x.device)
        if key not in self._launches:
            numbers = self._grid(x.dtype)
            self._launches[key] = scalar_launch(numbers, self.mode, x.dtype, x.device)
        return self._launches[key]

    def _grid(self, dtype: torch.dtype) -> Grid:
        return grid(self.format, self.mode, dtype, self.spare)
