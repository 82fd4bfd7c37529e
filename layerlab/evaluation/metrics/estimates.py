"""Scores of questions, their mean with a standard error, and two runs over the same questions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import Any

# Standard errors on either side of a 95 % interval.
WIDE = 1.959964
Ends = tuple[float, float]


@dataclass(frozen=True)
class Mean:
    """A mean of scores and how far it may be off.

    Attributes:
        value: of `n` questions.
        error: standard error; None where a single question tells none.
        size: questions that a share of right answers is as sure as; None of other scores.
    """

    value: float
    error: float | None
    n: int
    size: float | None = field(default=None, repr=False, compare=False)

    @property
    def ends(self) -> Ends | None:
        """Return the 95 % interval: Wilson's for a share, else 1.96 standard errors to each side.

        Scores that are all alike have no spread, and get Wilson's too: no scores from 0 to 1 with
        that mean spread more than zeros and ones.
        """
        if self.size is not None or not self.error:
            return wilson(self.value, self.n if self.size is None else self.size)
        return self.value - WIDE * self.error, self.value + WIDE * self.error

    def summary(self, percent: bool = True) -> str:
        """Write the mean as a table shows it: in percent, with its standard error.

        Questions that all score alike have no spread to tell an error from, so none is shown.

        Example:
            >>> mean([1.0, 0.0, 1.0, 1.0]).summary(), mean([0.0, 0.0]).summary()
            ('75.00 +- 25.00', '0.00')
        """
        factor = 100 if percent else 1
        error = "" if not self.error else f" +- {factor * self.error:.2f}"
        return f"{factor * self.value:.2f}{error}"


def mean(scores: Sequence[int | float]) -> Mean:
    """Return the mean of the scores of independent questions.

        error = s / sqrt(n)   with   s the standard deviation over n - 1

    Example:
        >>> mean([1.0, 0.0])
        Mean(value=0.5, error=0.5, n=2)
    """
    n = len(scores)
    error = stdev(scores) / math.sqrt(n) if n > 1 else None
    return Mean(fmean(scores) if scores else math.nan, error, n)


def mark_accuracy(scores: Sequence[int | float]) -> Mean:
    """Return the mean, marked as a share of right answers where all scores are 0 or 1.

    Example:
        >>> [round(end, 2) for end in mark_accuracy([0.0, 0.0]).ends]
        [0.0, 0.66]
    """
    found = mean(scores)
    return replace(found, size=float(found.n)) if found.n and set(scores) <= {0, 1} else found


def wilson(share: float, n: float) -> Ends | None:
    """Return Wilson's interval of a share, which is honest at 0 and 1, where the error is 0.

        (p + z^2 / 2n +- z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)   with   z = 1.96

    Never below 0 nor above 1.

    Source: wilson27.
    Unit: that of the share, from 0 to 1.

    Args:
        share: of n questions; outside of 0 to 1 there is no interval.

    Example:
        >>> [round(end, 3) for end in wilson(0.5, 10)]
        [0.237, 0.763]
    """
    if n <= 0 or not 0 <= share <= 1:
        return None
    square = WIDE**2 / n
    middle = share + square / 2
    half = WIDE * math.sqrt(share * (1 - share) / n + square / (4 * n))
    low, high = ((middle + side * half) / (1 + square) for side in (-1, 1))
    return min(share, max(0.0, low)), max(share, min(1.0, high))


def with_interval(found: Mean) -> dict[str, float | None]:
    """Return the 95 % interval and the effective sample size of a mean, as results keep them."""
    low, high = found.ends or (None, None)
    return {"low": low, "high": high, "effective_n": found.size}


def paired_mean(ours: Sequence[int | float], theirs: Sequence[int | float]) -> Mean:
    """Return the mean difference over the same questions, so that their difficulty cancels.

    Args:
        ours: score of each question.
        theirs: that of the other run, in the same order.

    Example:
        >>> paired_mean([1.0, 1.0, 0.0], [0.0, 0.0, -1.0])
        Mean(value=1.0, error=0.0, n=3)
    """
    return mean([one - other for one, other in zip(ours, theirs, strict=True)])


def combine_means(parts: Sequence[Mean], weights: Sequence[int | float] | None = None) -> Mean:
    """Return the weighted mean of independent means, its error and interval propagated.

        value = sum w m / sum w      error = sqrt(sum (w e)^2) / sum w
        n' = (sum w)^2 / sum (w^2 / n), or value (1 - value) / sum (w^2 m (1 - m) / n) if less

    The interval of a mean of shares is that of a share of n' questions; of one part, that part's.

    Source: korn98 for the effective number n'.

    Args:
        parts: none of them over the questions of another.
        weights: all the same where they are left out.

    Example:
        >>> combine_means([Mean(0.5, 0.3, 10), Mean(0.7, 0.4, 10)])
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
    size = _size(parts, [w / total for w in shares], value)
    return Mean(value, error, sum(part.n for part in parts), size)


def _size(parts: Sequence[Mean], shares: Sequence[float], value: float) -> float | None:
    """Return the size of a sample whose share would be as certain as a mean of shares.

    None where a part is no share.

    None where others are in it.
    """
    counted = [(w, part.value, part.size) for w, part in zip(shares, parts, strict=True) if w]
    if any(size is None for _, _, size in counted):
        return None
    alike = sum(w**2 / (size or 1) for w, _, size in counted)
    spread = sum(w**2 * share * (1 - share) / (size or 1) for w, share, size in counted)
    return min(1 / alike, value * (1 - value) / spread) if spread else 1 / alike


def match_scores(
    ours: Mapping[Any, float], theirs: Mapping[Any, float]
) -> tuple[list[float], list[float]]:
    """Return the scores of the questions that both runs answered, in one order."""
    same = [key for key in ours if key in theirs]
    return [ours[key] for key in same], [theirs[key] for key in same]
