"""Arithmetic in which every rounding is a variable, so that gradients tell the worst of them."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from layerlab.studies.budzinskiy25.support.scalar_arithmetic import Exact


class PerturbedArithmetic(Exact):
    """Every result times 1 + delta, the deltas of all draws apart; adding an exact 0 costs nothing.

    Attributes:
        made: the deltas, in the order of the operations.
    """

    def __init__(self) -> None:
        self.made: list[Tensor] = []

    def _perturb(self, x: Tensor) -> Tensor:
        delta = torch.zeros_like(x, requires_grad=True)
        self.made.append(delta)
        return x * (1 + delta)

    def _join(self, x: Tensor, y: Tensor) -> Tensor:
        total = x + y
        return torch.where((x == 0) | (y == 0), total, self._perturb(total))

    def take(self, x: Tensor) -> Tensor:
        return x.double()

    def product(self, x: Tensor, y: Tensor) -> Tensor:
        found = self._perturb(x[:, :, :1] * y[:, :1, :])
        for k in range(1, x.shape[2]):
            found = self._join(found, self._perturb(x[:, :, k : k + 1] * y[:, k : k + 1, :]))
        return found

    def total(self, x: Tensor) -> Tensor:
        found = x[..., :1]
        for k in range(1, x.shape[-1]):
            found = self._join(found, x[..., k : k + 1])
        return found

    def add(self, x: Tensor, y: Tensor | float) -> Tensor:
        return self._perturb(x + y)

    def subtract(self, x: Tensor, y: Tensor | float) -> Tensor:
        return self._perturb(x - y)

    def multiply(self, x: Tensor, y: Tensor | float) -> Tensor:
        return self._perturb(x * y)

    def divide(self, x: Tensor, y: Tensor | float) -> Tensor:
        return self._perturb(x / y)

    def root(self, x: Tensor) -> Tensor:
        return self._perturb(x.sqrt())

    def exponential(self, x: Tensor) -> Tensor:
        return self._perturb(x.exp())


def worst(run: Callable[[Exact], Tensor], columns: Sequence[int]) -> Tensor:
    """Return the largest |error| of last-row entries, over all roundings |delta| <= u, in units u.

    This is to first order and exact: sum |d result / d delta|, draw x column.

    Source: budzinskiy25, Model 4.1; the sum Own.

    Args:
        run: the module in an arithmetic, draw x row x column.
        columns: the entries that are asked for.
    """
    with torch.enable_grad():
        arithmetic = PerturbedArithmetic()
        out = run(arithmetic)
        found = []
        for column in columns:
            # Draws do not mix, so that one gradient serves all of them.
            given = torch.autograd.grad(
                out[:, -1, column].sum(), arithmetic.made, retain_graph=True, allow_unused=True
            )
            sizes = [one.abs().flatten(1).sum(1) for one in given if one is not None]
            found.append(torch.stack(sizes).sum(0))
    return torch.stack(found, 1)
