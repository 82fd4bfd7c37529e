"""Exact one-sided test of a share of right answers against guessing.

Whoever guesses is right at a question with the chance that the question leaves: 1/4 of four
options, 2/5 where two of five are right. So the number of right answers is a sum of independent
trials of unequal chance (Poisson binomial; binomial where all chances are alike), and the average
of several subjects a weighted sum of such numbers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Steps of the scale on which weighted sums are laid out; each is rounded up to the next of them.
STEPS = 1 << 18
LEVEL = 0.05

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Guesses:
    """The questions of a subject as whoever guesses meets them.

    Attributes:
        right: questions that were answered right; of a tie of k options 1 / k.
        chances: pairs of a chance and how many questions have it.
        weight: of the subject's share of right answers in the average.
    """

    right: float
    chances: Sequence[tuple[float, int]]
    weight: float = 1.0

    @property
    def n(self) -> int:
        """Return the number of questions."""
        return sum(count for _, count in self.chances)


def guessing_p(parts: Sequence[Guesses]) -> float:
    """Return the probability that guessing alone scores as high as this, or higher.

        p = P(sum w X / n >= sum w x / n)   with   X ~ PoissonBinomial(chances)

    Exact where every question weighs alike; else each term is rounded up to a 2^18th of the whole,
    so that p is never too small.

    Source: hong13 for the distribution.

    Args:
        parts: a subject each.

    Example:
        >>> round(guessing_p([Guesses(right=8, chances=[(0.5, 10)])]), 4)  # 56 / 1024
        0.0547
    """
    parts = [one for one in parts if one.n]
    total = sum(one.weight for one in parts)
    if not parts or not total:
        return 1.0
    shares = [one.weight / total / one.n for one in parts]
    if max(shares) - min(shares) < 1e-12 * max(shares):
        distribution = np.array([1.0])
        for one in parts:
            distribution = np.convolve(distribution, _counts(one))
        # Part of a right answer is none: rounded down, so that p is never too small.
        return _tail(distribution, math.floor(math.fsum(one.right for one in parts) + 1e-6))
    return _weighted_tail(parts, shares)


def _counts(one: Guesses) -> Array:
    """Return the probability of each number of right answers."""
    from scipy.stats import binom

    found: Array = np.array([1.0])
    for chance, count in one.chances:
        found = np.convolve(found, binom.pmf(np.arange(count + 1), count, chance))
    return found


def _tail(probabilities: Array, first: int) -> float:
    """Return the sum from a place on, the smallest terms first."""
    return min(1.0, math.fsum(np.sort(probabilities[first:])))


def _weighted_tail(parts: Sequence[Guesses], shares: Sequence[float]) -> float:
    from scipy.fft import next_fast_len

    size = next_fast_len(STEPS + len(parts) + 1)  # each term is rounded up by less than a step
    product = np.ones(size // 2 + 1, dtype=complex)
    for one, share in zip(parts, shares, strict=True):
        placed = np.zeros(size)
        places = np.ceil(np.arange(one.n + 1) * share * STEPS - 1e-6).astype(int)
        np.add.at(placed, places, _counts(one))
        product *= np.fft.rfft(placed)
    distribution = np.clip(np.fft.irfft(product, size), 0.0, None)
    scored = sum(one.right * share for one, share in zip(parts, shares, strict=True))
    return _tail(distribution, max(0, math.floor(scored * STEPS - 1e-6)))
