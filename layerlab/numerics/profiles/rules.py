"""Rounding rules of a profile, by operation."""

from collections.abc import Callable, Iterable
from functools import cache
from typing import cast

import torch
from torch import Tensor

from layerlab.numerics.emulation.arithmetic import AnyFormat, carrier
from layerlab.numerics.emulation.inner_roundings import Order, Summation
from layerlab.numerics.formats.formats import SINGLE, Format, find
from layerlab.numerics.formats.round import sparing
from layerlab.numerics.profiles.profile import NumericsProfile, find_rounding, split_sums

RoundValues = Callable[[Tensor], Tensor]


def rule(profile: NumericsProfile, operation: str, low: bool) -> str | None:
    """Return the name of what rounds the results of an operation; None where nothing does.

    Args:
        low: whether the model's code leaves them in its own dtype.
    """
    named = profile.operations.get(operation)
    format = named or (profile.default(operation) if low else None)
    if format is None or find_rounding(format) is None:
        return None
    if operation == "attention_weights" and profile.attention != "normalized":
        return f"{profile.attention} {format}"
    return format


@cache
def rounding(name: str) -> RoundValues:
    """Return the function behind what `rule` gives."""
    before, _, format = name.rpartition(" ")
    round: RoundValues = sparing(_format(format), "nearest", None)
    return _round_unnormalized(round, before == "renormalized") if before else round


@cache
def summations(sums: str) -> tuple[Summation, ...]:
    """Return the stages behind what a profile says of sums, for values in float32."""
    return tuple(
        Summation(
            cast(Order, order), int(count), rounding(format) if find_rounding(format) else _keep
        )
        for format, order, count in split_sums(sums)
    )


def _keep(values: Tensor) -> Tensor:
    return values


def _format(name: str) -> AnyFormat:
    return find(name)


def _round_unnormalized(round: RoundValues, again: bool) -> RoundValues:
    """Return what a kernel does that divides by the sum of the weights at the end.

    p = round(e) / sum(e) with e = p / max(p), since the largest e of a row is 1.

    Args:
        again: whether the sum is that of the rounded weights.

    Source: dao22, Algorithm 1, with one block of keys.
    """

    def apply(weights: Tensor) -> Tensor:
        largest = weights.amax(dim=-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
        rounded = round(weights / largest)
        # Unrounded, they are divided by 1 / largest.
        return rounded / rounded.sum(dim=-1, keepdim=True) if again else rounded * largest

    return apply


def find_carrier(profiles: Iterable[NumericsProfile]) -> torch.dtype:
    """Return the dtype in which results of all formats are rounded once."""
    names = {
        name
        for one in profiles
        for name in (one.format, *one.defaults.values(), *one.operations.values())
    }
    formats = [find(name) for name in names]
    narrow = [one for one in formats if isinstance(one, Format) and one.digits < SINGLE]
    double = any(carrier(one) == torch.float64 for one in narrow)
    return torch.float64 if double else torch.float32
