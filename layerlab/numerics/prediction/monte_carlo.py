"""Rounding errors predicted by drawing them: every result is moved by a random part of its gap.

Unlike a variance that is carried along, drawn errors keep every correlation between values: what a
block takes back from the stream, and what adds up along one direction. Unlike an emulation, they do
not depend on where a value lies between its neighbours.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from layerlab.numerics.emulation.arithmetic import EmulatedArithmetic, exact
from layerlab.numerics.emulation.attribution import outputs, read_outputs
from layerlab.numerics.emulation.emulate import Emulation
from layerlab.numerics.emulation.op_site import OpSite
from layerlab.numerics.formats.formats import AnyFormat, Format
from layerlab.numerics.formats.grid import MASK
from layerlab.numerics.formats.random_bits import generator_on
from layerlab.numerics.formats.round import Rounder
from layerlab.numerics.prediction.error_state import spacing

DRAWS = 4


class MonteCarlo(Emulation):
    """Runs a model in float64 with a drawn error for each result that would be rounded.

    Parameters, and factors in formats of storage, are rounded as they are.

    Source: parker97, "random rounding".

    Args:
        model: the model; it is not changed.
        arithmetic: which format what is rounded to; its seed is that of the draws.
        where: patterns of the places that are rounded; None for all.
    """

    copies = 6

    def __init__(
        self,
        model: nn.Module,
        arithmetic: EmulatedArithmetic,
        where: str | Iterable[str] | None = None,
    ) -> None:
        super().__init__(model, replace(arithmetic, wide=torch.float64), where)
        self._storing = False

    def _weight(
        self, values: Tensor, site: OpSite, format: AnyFormat, in_place: bool = False
    ) -> Tensor:
        self._storing = True
        try:
            return super()._weight(values, site, format, in_place)
        finally:
            self._storing = False

    def rounder(self, format: AnyFormat) -> Rounder:
        if self._storing or not isinstance(format, Format):
            return super().rounder(format)

        round = super().rounder(format)

        def move(values: Tensor, out: Tensor | None = None) -> Tensor:
            rounded = round(values)
            generator = generator_on(values.device, self._generator)
            # In logical order: the same draws however the values lie.
            drawn = torch.empty_like(values, memory_format=torch.contiguous_format)
            drawn.uniform_(-0.5, 0.5, generator=generator)
            moved = values + spacing(values, format) * drawn
            # What the format holds exactly, as 0 or not at all is not drawn for: beside a number
            # far below the smallest one, the gap would be all that a norm behind it sees.
            inside = (rounded != values) & (rounded != 0) & (rounded.abs() < format.largest)
            return torch.where(inside & (values.abs() < MASK), moved, rounded, out=out)

        return move


def sample_errors(
    model: nn.Module,
    call: Callable[[], Any],
    arithmetic: EmulatedArithmetic,
    modules: Sequence[nn.Module],
    where: str | Iterable[str] | None = None,
    draws: int = DRAWS,
    true: Sequence[Tensor] | None = None,
) -> tuple[list[Tensor], list[Tensor]]:
    """Sample the root mean square error of modules' outputs and of the logits over a few draws.

    Source: parker97, "random rounding".

    Args:
        call: runs the model once.
        modules: those whose outputs are read, in the order in which they run.
        draws: number of runs.
        true: the values, where a reference run has given them already; else one is made.

    Returns:
        The values in float64 of the modules' outputs and then the logits, and their spreads.
    """
    if true is None:
        found = outputs(Emulation(model, exact(arithmetic.low)), call, modules)
        true = found[1:] if modules else found
    values = list(true)
    squares = [torch.zeros_like(value) for value in values]

    def add(index: int, seen: Tensor) -> None:
        if index:  # 0 is the input of the first module
            squares[index - 1] += (seen - values[index - 1]).square()

    for draw in range(draws):
        run = MonteCarlo(model, replace(arithmetic, seed=arithmetic.seed + draw), where)
        read_outputs(run, call, modules, add)
    return values, [(square / draws).sqrt() for square in squares]
