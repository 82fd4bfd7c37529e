"""Mistakes no larger than rounding, told from it by what they do to all tokens together."""

from collections.abc import Sequence

import torch
from torch import Tensor

from layerlab.numerics.profiles.token_differences import rms
from layerlab.numerics.recorded.recorded_gap import TemperatureFit
from layerlab.numerics.recorded.rounding_limits import LEAST, STRAYING

STEPS = 5  # of Newton's method: what a slight temperature does is all but linear in it


class LogitSlopes:
    """Derivatives of the log-probabilities of tokens by the temperature, in the first run.

    l(b) = b z_t - log sum_v exp(b z_v),   l'(1) = z_t - <z>,   l''(1) = <z>^2 - <z^2>

    for logits z and one over the temperature, b; <> is the mean over the distribution itself.

    Source: Own.
    """

    def __init__(self) -> None:
        self._slopes: list[Tensor] = []
        self._curves: list[Tensor] = []

    def add(self, targets: Tensor, logits: Sequence[Tensor]) -> None:
        """Take note of some tokens.

        Args:
            targets: the tokens that were predicted.
            logits: of each run, position x vocabulary.
        """
        rows, shares = logits[0], logits[0].softmax(-1)
        seen = rows.masked_fill(shares == 0, 0.0)  # as masks, whose square is infinite
        mean = (shares * seen).sum(-1, keepdim=True)
        self._curves.append((shares * (seen - mean).square()).sum(-1).double())
        self._slopes.append((rows.gather(-1, targets[:, None]) - mean)[:, 0].double())

    def select(self, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return first derivatives, and second ones with their sign changed, of some tokens."""
        return torch.cat(self._slopes)[mask], torch.cat(self._curves)[mask]


def estimate(error: Tensor, direction: Tensor) -> tuple[float, float]:
    """Return how much of a direction is in an error, and how far that strays.

    c = <e, d> / <d, d>,   se^2 = sum d_i^2 (e_i - c_i d_i)^2 / <d, d>^2

    for c_i the multiple that all tokens but i give, so that one which weighs much hides no error
    of its own, and none has to be as large as another.

    Source: Own.

    Args:
        error: of each token.
        direction: what a mistake does to each.

    Returns:
        The multiple, and `STRAYING` standard errors of it.
    """
    square = direction.square().sum()
    part = (error * direction).sum() / square
    others = 1 - direction.square() / square
    left = ((error - part * direction) / others).nan_to_num(nan=torch.inf)
    spread = (direction * left)[direction != 0].square().sum().sqrt() / square
    return float(part), STRAYING * float(spread)


def fit_temperature(
    recorded: Tensor, exact: Tensor, profiles: Sequence[Tensor], slopes: tuple[Tensor, Tensor]
) -> TemperatureFit | None:
    """Estimate a temperature near 1 beside the profile that leaves least; None of a few tokens.

    The interval is as wide as the errors of the tokens let it stray, and by what the rounding of
    a profile alone looks like: that, too, may be a slope common to all tokens.

    Source: Own.

    Args:
        recorded: of each token.
        exact: in float32.
        profiles: under each profile.
        slopes: as `LogitSlopes` has them.
    """
    if len(recorded) < LEAST or not bool(slopes[0].any()):
        return None
    drift = max(abs(_fit_power(one - exact, slopes)[0]) for one in profiles)
    fits = [(recorded - one, *_fit_power(recorded - one, slopes)) for one in (exact, *profiles)]
    error, power, strays = min(fits, key=lambda one: rms(one[0] - _bend(one[1], slopes)))
    low, high = (
        1 / max(1 + power + side * (strays + drift), torch.finfo(torch.float64).tiny)
        for side in (1, -1)
    )
    return TemperatureFit(
        value=1 / (1 + power) if power > -1 else high,
        low=low,
        high=high,
        left=rms(error - _bend(power, slopes)),
        bias=float((error - _bend(power, slopes)).mean()),
        whole=rms(error),
    )


def _bend(power: float, slopes: tuple[Tensor, Tensor]) -> Tensor:
    """Return what the logits times 1 + power change, to second order."""
    return power * slopes[0] - power**2 / 2 * slopes[1]


def _fit_power(error: Tensor, slopes: tuple[Tensor, Tensor]) -> tuple[float, float]:
    power = strays = 0.0
    for _ in range(STEPS):
        direction = slopes[0] - power * slopes[1]
        more, strays = estimate(error - _bend(power, slopes), direction)
        power += more
    return power, strays
