"""Arithmetic in which every scalar operation is rounded, for many draws at once.

This is the model of the source's experiments: `t` digits, unlimited exponent, round to nearest with
ties to even after each operation, sums from left to right. The first axis is the draw, and in
memory the draw is the fastest one: each operation then runs over contiguous numbers of different
draws, and its order within a draw is the one that is written down here.

A product of two `t`-digit numbers has 2t digits, so a carrier of at least 2t + 2 digits rounds
+ - * / and sqrt like a machine of t digits: float32 carries t <= 11, float64 t <= 25. Exponents are
unlimited as far as the carrier's are: float32 is for numbers up to 1e34, of which what is below
1e-38 does not matter.
"""

from collections.abc import Callable
from math import sqrt
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from layerlab.errors import UserError

Draws = Float[Tensor, "draw row column"]
Left = Float[Tensor, "draw row inner"]
Right = Float[Tensor, "draw inner column"]
Sums = Float[Tensor, "draw row 1"]
RoundStep = Callable[[Tensor], Tensor]

# dtype: digits of the significand, integer of that size, the bits of the exponent.
CARRIERS: dict[torch.dtype, tuple[int, torch.dtype, int]] = {
    torch.float32: (24, torch.int32, 0x7F80_0000),
    torch.float64: (53, torch.int64, 0x7FF0_0000_0000_0000),
}
MOST_DIGITS = 25


def carrier_of(digits: int) -> torch.dtype:
    """Return the cheapest carrier in which rounding twice equals rounding once.

    Source: figueroa95, Theorem 2: with 2t + 2 digits two roundings of + - * / and sqrt are one.

    Raises:
        UserError: no carrier here has so many digits.

    Example:
        >>> carrier_of(11), carrier_of(12)
        (torch.float32, torch.float64)
    """
    for dtype, (precision, _, _) in CARRIERS.items():
        if 2 <= digits and 2 * digits + 2 <= precision:
            return dtype
    raise UserError(
        f"{digits} digits cannot be emulated operation by operation; expected 2 to {MOST_DIGITS}: "
        "type for example digits=11"
    )


def draws_last(x: Tensor) -> Tensor:
    """Return the same numbers with the draw as the fastest axis in memory."""
    return x.movedim(0, -1).contiguous().movedim(-1, 0)


class Exact:
    """The reference: float64, nothing rounded on purpose."""

    digits: int | None = None
    dtype = torch.float64

    def take(self, x: Tensor) -> Tensor:
        """Take numbers from outside into the carrier."""
        return draws_last(x.to(self.dtype))

    def product(self, x: Left, y: Right) -> Draws:
        return draws_last(x @ y)

    def total(self, x: Draws) -> Sums:
        """Return the sum over the last axis, which stays with length 1."""
        return x.sum(-1, keepdim=True)

    def add(self, x: Tensor, y: Tensor | float) -> Tensor:
        return x + y

    def subtract(self, x: Tensor, y: Tensor | float) -> Tensor:
        return x - y

    def multiply(self, x: Tensor, y: Tensor | float) -> Tensor:
        return x * y

    def divide(self, x: Tensor, y: Tensor | float) -> Tensor:
        return x / y

    def root(self, x: Tensor) -> Tensor:
        return x.sqrt()

    def root_of(self, number: int) -> float:
        """Return the square root of a whole number, as this arithmetic holds it."""
        return sqrt(number)

    def exponential(self, x: Tensor) -> Tensor:
        return x.exp()


class Strict(Exact):
    """Every scalar operation rounded to `digits` digits, sums from left to right."""

    def __init__(
        self,
        digits: int,
        mode: str = "nearest",
        generator: torch.Generator | None = None,
        carrier: torch.dtype | None = None,
    ) -> None:
        self.digits = digits
        self.dtype = carrier or carrier_of(digits)
        self._spaces: dict[Any, Tensor] = {}
        near = self if self.dtype == torch.float64 else Strict(digits, carrier=torch.float64)
        self._near: RoundStep = near._nearest
        stochastic = None if mode == "nearest" else _copy(digits, mode, generator)
        self._round: RoundStep = stochastic or self._nearest
        # For results that are made in float64 and belong in a narrower carrier.
        self._wide: RoundStep = stochastic or self._near

    def round(self, x: Tensor) -> Tensor:
        """Return the numbers as this arithmetic holds them; may change `x` in place."""
        return self._round(x)

    def take(self, x: Tensor) -> Tensor:
        # To nearest in any mode, and in float64 first: a narrow carrier would round it before.
        fresh = draws_last(x.double()).clone(memory_format=torch.preserve_format)
        return self._near(fresh).to(self.dtype)

    def product(self, x: Left, y: Right) -> Draws:
        shape = (x.shape[0], x.shape[1], y.shape[2])
        total, term = self._empty(shape, x), self._space(shape, "term", x)
        torch.mul(x[:, :, :1], y[:, :1, :], out=total)
        total = self._round(total)
        for k in range(1, x.shape[2]):
            torch.mul(x[:, :, k : k + 1], y[:, k : k + 1, :], out=term)
            total = self._round(total.add_(self._round(term)))
        return total

    def total(self, x: Draws) -> Sums:
        found = x[..., :1].clone(memory_format=torch.preserve_format)
        for k in range(1, x.shape[-1]):
            found = self._round(found.add_(x[..., k : k + 1]))
        return found

    def add(self, x: Tensor, y: Tensor | float) -> Tensor:
        return self._round(x + y)

    def subtract(self, x: Tensor, y: Tensor | float) -> Tensor:
        return self._round(x - y)

    def multiply(self, x: Tensor, y: Tensor | float) -> Tensor:
        return self._round(x * y)

    def divide(self, x: Tensor, y: Tensor | float) -> Tensor:
        return self._round(x / y)

    def root(self, x: Tensor) -> Tensor:
        # In float64: torch's float32 root may miss the nearest number by one.
        return self._wide(x.double().sqrt_()).to(self.dtype)

    def root_of(self, number: int) -> float:
        return float(self._near(torch.tensor([[[sqrt(number)]]], dtype=torch.float64)))

    def exponential(self, x: Tensor) -> Tensor:
        # The float32 exponential of a machine is not correctly rounded; float64's error is far
        # below half a unit of the digits kept here.
        return self._wide(x.double().exp_()).to(self.dtype)

    def _nearest(self, x: Tensor) -> Tensor:
        """Round in place: adding and subtracting 1.5 * 2^(p-t) * 2^e drops p - t bits.

        e is the exponent of the number itself; p - t >= 2 keeps the parity of the last digit kept.
        """
        precision, integer, exponent = CARRIERS[x.dtype]
        magic = 1.5 * 2.0 ** (precision - int(self.digits or 0))
        scale = self._space(x.shape, "scale", x)
        torch.bitwise_and(x.view(integer), exponent, out=scale.view(integer))
        torch.add(x, scale, alpha=magic, out=x)
        return torch.sub(x, scale, alpha=magic, out=x)

    def _empty(self, shape: Any, like: Tensor) -> Tensor:
        return like.new_empty((*shape[1:], shape[0])).movedim(-1, 0)

    def _space(self, shape: Any, use: str, like: Tensor) -> Tensor:
        """Return scratch memory that is kept, as fresh memory costs more than the rounding."""
        key = (*shape, use, like.dtype, like.device)
        if key not in self._spaces:
            self._spaces[key] = self._empty(shape, like)
        return self._spaces[key]


def _copy(digits: int, mode: str, generator: torch.Generator | None) -> RoundStep:
    from layerlab.numerics.formats.round import rounder

    return rounder(f"t{digits}", mode, generator)
