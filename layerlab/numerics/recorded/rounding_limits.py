"""Limits of rounding between a record and a float32 run, and the tokens beyond them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from layerlab.numerics.profiles.token_differences import rms

# Rounding makes no more than so many times the RMS, or the bias, of the profile that makes most,
# be it asked for or the usual one; and the mean of n tokens strays by its standard error.
MULTIPLE = 2.0
STRAYING = 4.0
# What float32 makes of what bf16 does: by their digits, and as sums in it are rounded at each
# term, which those of bf16 are but at the end.
TERMS = 8.0
FEWER = TERMS * torch.finfo(torch.float32).eps / torch.finfo(torch.bfloat16).eps
DIGITS = 17  # what a float64 is written with at the most
# Of fewer tokens nothing is told that shows only in all of them.
LEAST = 24
# One token in so many may be far out while the others are as rounding makes them.
SELDOM = 100


@dataclass(frozen=True, kw_only=True)
class RoundingLimits:
    """Sizes of error that rounding makes in the log-probabilities of a record.

    Attributes:
        floor: RMS of what float32 makes, and the digits of the record: none smaller is seen.
        size: the largest RMS that a profile makes, in nats.
        bias: the largest mean that is put down to rounding.
        largest: the largest error that a profile makes of a token.
    """

    floor: float
    size: float
    bias: float
    largest: float

    @property
    def rms(self) -> float:
        """Return the largest RMS that is put down to rounding."""
        return MULTIPLE * self.size

    def are_passed(self, error: Tensor) -> bool:
        """Return whether an error is larger than rounding makes it, in its RMS or its mean."""
        return self.is_passed(rms(error), float(error.mean()))

    def is_passed(self, size: float, bias: float) -> bool:
        """Return whether an RMS or a mean is larger than rounding makes it."""
        return not (size <= self.rms and abs(bias) <= self.bias)  # nor is what is not finite

    def find_outliers(self, error: Tensor) -> Tensor:
        """Return which tokens are far out, if without these few the others are rounding.

        Args:
            error: of a record; NaN where there is none.
        """
        mask = ~error.isnan()
        far = mask & (error.abs() > MULTIPLE * self.largest)
        count, tokens = int(far.sum()), int(mask.sum())
        few = tokens >= LEAST and count <= max(tokens // SELDOM, 1)
        if few and self.are_passed(error[mask]) and not self.are_passed(error[mask & ~far]):
            return far
        return torch.zeros_like(far)


def find_limits(errors: Sequence[Tensor], recorded: Tensor) -> RoundingLimits:
    """Return what profiles make, and the digits of a record.

    Args:
        errors: of each profile, the usual one last.
        recorded: log-probabilities.
    """
    floor = FEWER * rms(errors[-1]) + _find_step(recorded)
    size = max(*map(rms, errors), floor)
    bias = MULTIPLE * max(abs(float(one.mean())) for one in errors)
    return RoundingLimits(
        floor=floor,
        size=size,
        bias=bias + STRAYING * size / len(recorded) ** 0.5,
        largest=max(floor, *(float(one.abs().max()) for one in errors)),
    )


def _find_step(recorded: Tensor) -> float:
    """Return the size of the error by which a record is cut to so many digits behind the point."""
    for digits in range(DIGITS):
        if recorded.equal(recorded.round(decimals=digits)):
            return float(10.0**-digits / 12**0.5)
    return 0.0
