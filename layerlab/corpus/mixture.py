"""Order of draws from several sources: no prefix strays from their weights."""

from collections.abc import Sequence
from fractions import Fraction
from math import lcm

import numpy as np

from layerlab.errors import UserError

# Turns until the pattern repeats, at most; weights that need more are rounded to so many parts.
LONGEST = 1 << 16


class Mixture:
    """An endless sequence of sources; any part of it can be asked for.

    After any number of turns each source has had its share of them, within less than one turn: the
    chairman assignment of Tijdeman (1980), which is exact after as many turns as the weights have
    parts, and then repeats.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        """Compute the pattern of the sources."""
        self.parts = parts_of(weights)
        self.pattern = np.array(_pattern(self.parts), np.int64)
        self._each = np.array(self.parts, np.int64)
        # The how-manieth turn of its source each place of the pattern is.
        self.turns = np.empty_like(self.pattern)
        for source in range(len(self.parts)):
            mine = self.pattern == source
            self.turns[mine] = np.arange(mine.sum())

    def turn(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the source of each place, and how many turns that source has had before."""
        rounds, rest = np.divmod(places, len(self.pattern))
        sources = self.pattern[rest]
        return sources, rounds * self._each[sources] + self.turns[rest]


def parts_of(weights: Sequence[float]) -> list[int]:
    """Return whole numbers in the ratio of the weights, as they are written.

    Raises:
        UserError: a weight is too small beside the others to have a turn.

    Example:
        >>> parts_of([0.5, 0.3, 0.2])
        [5, 3, 2]
    """
    exact = [Fraction(str(weight)) for weight in weights]
    unit = lcm(*(weight.denominator for weight in exact))
    parts = [int(weight * unit) for weight in exact]
    total = sum(parts)
    if total > LONGEST:
        if min(parts) * LONGEST < total:
            raise UserError(
                f"the weight {min(weights):g} is less than 1 / {LONGEST:,} of the sum of all, "
                f"{sum(weights):g}; expected at least {sum(weights) / LONGEST:.2g}: write a larger "
                "weight, or leave that source out"
            )
        parts = [round(Fraction(one * LONGEST, total)) for one in parts]
    common = np.gcd.reduce(parts)
    return [int(one // common) for one in parts]


def _pattern(parts: Sequence[int]) -> list[int]:
    """Return one round of turns: each goes to the source whose next one is due first."""
    if len(parts) == 1:
        return [0]
    total, scale = sum(parts), 2 * len(parts) - 2
    had = [0] * len(parts)
    found = []
    for turn in range(1, total + 1):
        lags = [turn * part - total * count for part, count in zip(parts, had, strict=True)]
        due = [source for source, lag in enumerate(lags) if scale * lag >= total]
        chosen = min(
            due, key=lambda source: ((scale - 1) * total - scale * lags[source]) / parts[source]
        )
        had[chosen] += 1
        found.append(chosen)
    return found
