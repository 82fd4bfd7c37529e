"""The standard model of floating point, with one unit roundoff for each kind of operation.

fl(a op b) = (a op b)(1 + delta), |delta| <= u, also for exp, erf, tanh and square roots. Without
underflow and overflow. A product of factors (1 + delta)^{+-1} is 1 + theta with
|theta| <= exp(sum of -log(1 - u)) - 1, which is below gamma_n and allows units of several sizes.

Source: budzinskiy25, Model 4.1 and Lemma 4.2, which know one unit; several are Own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from layerlab.errors import UserError

TermCount = int | float | Tensor
"""How often an operation is done: a number, or one for each place."""


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """Unit roundoffs by operation; 0 means exact.

    Attributes:
        product: the multiplications inside a matrix product.
        sum: its additions, the bias among them.
        store: what a finished matrix product, norm, softmax or activation is rounded to once more;
            0 where it is already in that format.
        norm: everything inside a norm but its gain and shift.
        gain: gain and shift of a norm.
        rotary: multiplications and additions of rotary positions.
        scale: the factor on the scores, on embeddings.
        softmax: differences, exponentials, sums and quotients of a softmax.
        activation: everything inside an activation.
        gate: the product of a gated feed-forward layer.
        residual: the additions to the residual stream.
        constant: stored constants: rotary and embedding tables, sqrt(d), the factor on the scores.
        first_order: drop squares of units. It is simpler, and no bound once it is not small.
    """

    product: float = 0.0
    sum: float = 0.0
    store: float = 0.0
    norm: float = 0.0
    gain: float = 0.0
    rotary: float = 0.0
    scale: float = 0.0
    softmax: float = 0.0
    activation: float = 0.0
    gate: float = 0.0
    residual: float = 0.0
    constant: float = 0.0
    first_order: bool = False

    def __post_init__(self) -> None:
        for name, unit in self.units().items():
            if not 0 <= unit < 1:
                raise UserError(
                    f"{name}={unit} is no unit roundoff; give a number from 0 (exact) to below 1, "
                    "such as 2**-8 for bfloat16"
                )

    def units(self) -> Mapping[str, float]:
        """Return every unit roundoff by its operation."""
        return {name: getattr(self, name) for name in OPERATIONS}

    @property
    def second(self) -> float:
        """Return the factor of products of two errors: 0 in first order."""
        return 0.0 if self.first_order else 1.0

    def reach(self, size: Tensor, error: Tensor) -> Tensor:
        """Return how large a value with an error can be.

        Products of two errors are of second order.
        """
        return size if self.first_order else size + error

    def linear(self) -> Arithmetic:
        """Return the same units, to first order."""
        return replace(self, first_order=True)

    def growth(self, **counts: TermCount) -> Tensor:
        """Return the largest |theta| of a product of that many factors (1 + delta)^{+-1}.

        sum_i n_i u_i in first order, exp(sum_i -n_i log(1 - u_i)) - 1 in full. Halves count too:
        under a square root an error enters with a half.
        """
        total = torch.zeros((), dtype=torch.float64)
        for name, count in counts.items():
            unit = getattr(self, name)
            total = total + (unit if self.first_order else -math.log1p(-unit)) * count
        return total if self.first_order else torch.expm1(total)


OPERATIONS = tuple(field.name for field in fields(Arithmetic) if field.name != "first_order")


def uniform(unit: float) -> Arithmetic:
    """Return the source's model: every operation rounded with one unit, constants exact.

    Source: budzinskiy25, Model 4.1.

    Example:
        >>> uniform(2**-8).linear().growth(product=1, sum=3).item() == 4 * 2**-8
        True
    """
    exact = {"store", "constant"}
    units: dict[str, Any] = {name: 0.0 if name in exact else unit for name in OPERATIONS}
    return Arithmetic(**units)


def mixed(low: float, high: float) -> Arithmetic:
    """Return the arithmetic of models as they run, with two units.

    Sums, norms, softmax and activations are in one format, results in another.

    Inside matrix products, norms, softmax and activations the unit is `high`; each result is then
    stored with `low`, and what stands between (gains, rotary positions, residual sums, gates) is
    computed with `low`. Tables and constants are stored with `low`.

    Source: Own.

    Example:
        >>> arithmetic = mixed(2**-8, 2**-24)
        >>> arithmetic.residual == 2**-8, arithmetic.softmax == 2**-24
        (True, True)
    """
    inside = {"product", "sum", "norm", "softmax", "activation"}
    units: dict[str, Any] = {name: high if name in inside else low for name in OPERATIONS}
    return Arithmetic(**units)
