"""Activations z G(z): their condition, and how far a computed one may be from the true one.

With phi(z) = z G(z) the slope is G (1 + e) and the condition |1 + e|, e = z G'(z) / G(z). For GELU
and SiLU it grows without end as z falls, so where phi is tiny only absolute errors say something.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from layerlab.errors import UserError
from layerlab.numerics.theory.roundoff_model import Arithmetic

Entries = Float[Tensor, "..."]

ROOT = math.sqrt(2 / math.pi)
CUBE = 0.044715


@dataclass(frozen=True, kw_only=True)
class SelfGatedActivation:
    """phi(z) = z gate(z).

    Attributes:
        elasticity: z G'(z) / G(z).
        lipschitz: sup |phi'|, rounded up.
        curvature: sup |phi''|, rounded up; infinite where phi has a kink.
        rounding: the largest |fl(phi(z)) - phi(z)|, before it is stored.
    """

    gate: Callable[[Entries], Entries]
    elasticity: Callable[[Entries], Entries]
    lipschitz: float
    curvature: float
    rounding: Callable[[Entries, Arithmetic], Entries]

    def value(self, z: Entries) -> Entries:
        return z * self.gate(z)

    def slope(self, z: Entries) -> Entries:
        return self.gate(z) * (1 + self.elasticity(z))


def _density(z: Entries) -> Entries:
    return torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)


def _normal(z: Entries) -> Entries:
    return torch.exp(torch.special.log_ndtr(z))


def _normal_elasticity(z: Entries) -> Entries:
    logarithm = -z.square() / 2 - math.log(2 * math.pi) / 2
    return z * torch.exp(logarithm - torch.special.log_ndtr(z))


def _cubic(z: Entries) -> Entries:
    return ROOT * (z + CUBE * z**3)


def _cubic_elasticity(z: Entries) -> Entries:
    return 2 * z * ROOT * (1 + 3 * CUBE * z.square()) * torch.sigmoid(-2 * _cubic(z))


def _gelu_rounding(z: Entries, arithmetic: Arithmetic) -> Entries:
    """Bound the rounding of z/2 (1 + erf(z / sqrt 2)), the factor 1/sqrt 2 rounded too."""
    two, second = arithmetic.growth(activation=2), arithmetic.second
    nearest = z.abs() * (1 - second * two).clamp_min(0)
    moved = 2 * z.abs() * _density(nearest) * two
    return (
        _bracket(z, torch.erf(z.abs() / math.sqrt(2)), moved, arithmetic)
        + two * (z * _normal(z)).abs()
    )


def _tanh_rounding(z: Entries, arithmetic: Arithmetic) -> Entries:
    """Bound the rounding of z/2 (1 + tanh v); v has at most seven roundings."""
    seven, second = arithmetic.growth(activation=7), arithmetic.second
    inner = _cubic(z).abs()
    nearest = inner * (1 - second * seven).clamp_min(0)
    moved = seven * inner / torch.cosh(nearest.clamp_max(300)).square()
    return (
        _bracket(z, torch.tanh(inner), moved, arithmetic)
        + arithmetic.growth(activation=2) * (z * torch.sigmoid(2 * _cubic(z))).abs()
    )


def _bracket(z: Entries, odd: Entries, moved: Entries, arithmetic: Arithmetic) -> Entries:
    """Bound |z|/2 times the error of erf or tanh itself.

    It goes through the two operations that follow.
    """
    second = arithmetic.second
    if second:  # neither leaves [-1, 1]
        moved = moved.clamp_max(2.0)
    error = moved + arithmetic.growth(activation=1) * (odd + second * moved)
    return z.abs() / 2 * error * (1 + second * arithmetic.growth(activation=2))


def _silu(roundings: int) -> SelfGatedActivation:
    return SelfGatedActivation(
        gate=torch.sigmoid,
        elasticity=lambda z: z * torch.sigmoid(-z),
        lipschitz=1.09984,
        curvature=0.5,
        rounding=lambda z, arithmetic: (
            arithmetic.growth(activation=roundings) * (z * torch.sigmoid(z)).abs()
        ),
    )


ACTIVATIONS: Mapping[str, SelfGatedActivation] = {
    "relu": SelfGatedActivation(
        gate=lambda z: (z > 0).to(z),
        elasticity=torch.zeros_like,
        lipschitz=1.0,
        curvature=math.inf,
        rounding=lambda z, arithmetic: torch.zeros_like(z),
    ),
    "gelu": SelfGatedActivation(
        gate=_normal,
        elasticity=_normal_elasticity,
        lipschitz=1.12891,
        curvature=0.79789,
        rounding=_gelu_rounding,
    ),
    "gelu-tanh": SelfGatedActivation(
        gate=lambda z: torch.sigmoid(2 * _cubic(z)),
        elasticity=_cubic_elasticity,
        lipschitz=1.12900,
        curvature=0.79789,
        rounding=_tanh_rounding,
    ),
    # as z / (1 + e^-z), and as z times the sigmoid
    "silu": _silu(3),
    "silu-product": _silu(4),
}
"""By name. The rows of GELU are those of the formula; a library's own kernel may be worse."""


def activation(name: str) -> SelfGatedActivation:
    """Return the activation with that name.

    Source: hendrycks16, section 2; ramachandran17, section 4; their roundings Own.

    Raises:
        UserError: another name.
    """
    if name not in ACTIVATIONS:
        raise UserError(
            f"{name!r} is no activation with a known rounding bound; "
            f"give one of {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]
