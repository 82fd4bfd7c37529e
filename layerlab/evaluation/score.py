"""Scores of questions, their mean with a standard error, and two runs over the same questions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any


@dataclass(frozen=True)
class Mean:
    """A mean of scores and how far it may be off.

    Attributes:
        value: of `n` questions.
        error: standard error; None where a single question tells none.
    """

    value: float
    error: float | None
    n: int

    def told(self, percent: bool = True) -> str:
        """As a table shows it: in percent, with its standard error.

        Example:
            >>> mean([1.0, 0.0, 1.0, 1.0]).told()
            '75.00 +- 25.00'
        """
        factor = 100 if percent else 1
        error = "" if self.error is None else f" +- {factor * self.error:.2f}"
        return f"{factor * self.value:.2f}{error}"


def mean(scores: Sequence[int | float]) -> Mean:
    """Mean of the scores of independent questions.

        error = s / sqrt(n)   with   s the standard deviation over n - 1

    Example:
        >>> mean([1.0, 0.0])
        Mean(value=0.5, error=0.5, n=2)
    """
    n = len(scores)
    error = stdev(scores) / math.sqrt(n) if n > 1 else None
    return Mean(fmean(scores) if scores else math.nan, error, n)


def paired(ours: Sequence[int | float], theirs: Sequence[int | float]) -> Mean:
    """Mean difference over the same questions; what makes a question hard for both cancels.

    Args:
        ours: score of each question.
        theirs: that of the other run, in the same order.

    Example:
        >>> paired([1.0, 1.0, 0.0], [0.0, 0.0, -1.0])
        Mean(value=1.0, error=0.0, n=3)
    """
    return mean([one - other for one, other in zip(ours, theirs, strict=True)])


def combined(parts: Sequence[Mean], weights: Sequence[int | float] | None = None) -> Mean:
    """Weighted mean of independent means, its error propagated from theirs.

        value = sum w m / sum w      error = sqrt(sum (w e)^2) / sum w

    Args:
        parts: none of them over the questions of another.
        weights: all the same where they are left out.

    Example:
        >>> combined([Mean(0.5, 0.3, 10), Mean(0.7, 0.4, 10)])
        Mean(value=0.6, error=0.25, n=20)
    """
    shares = list(weights) if weights is not None else [1] * len(parts)
    total = sum(shares)
    if not parts or not total:
        return Mean(math.nan, None, 0)
    value = sum(w * part.value for w, part in zip(shares, parts, strict=True)) / total
    errors = [part.error for part in parts]
    error = None
    if None not in errors:
        squares = [(w * (e or 0.0)) ** 2 for w, e in zip(shares, errors, strict=True)]
        error = math.sqrt(sum(squares)) / total
    return Mean(value, error, sum(part.n for part in parts))


def matched(
    ours: Mapping[Any, float], theirs: Mapping[Any, float]
) -> tuple[list[float], list[float]]:
    """Scores of the questions that both runs answered, in one order."""
    same = [key for key in ours if key in theirs]
    return [ours[key] for key in same], [theirs[key] for key in same]
