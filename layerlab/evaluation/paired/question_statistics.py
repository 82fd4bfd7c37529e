"""Tests of two models on the same questions, and intervals of their difference.

Where answers are right or wrong the test is exact: under the hypothesis that the two models are
alike, each question that only one of them has right might as well have been the other's. Questions
about one document change sides together.

Scores between have a t-test whose errors are those of clusters. A bootstrap was measured in its
place: with few clusters, or with a large one beside small ones, its intervals miss the truth up to
twice as often as they say, and those of the t-test do not (tests/evaluation/paired,
test_coverage.py).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from layerlab.experiments.statistics.differences import (
    Difference,
    Level,
    Range,
    paired_difference,
)

EXACT, CLUSTERS, T_TEST = "exact McNemar test", "exact test over clusters", "paired t-test"


@dataclass(frozen=True, kw_only=True)
class QuestionTest:
    """Outcome of a test of two models.

    Attributes:
        test: its name.
        n: questions.
        units: of replication: questions, clusters of questions, or tasks.
        difference: mean of the model less that of the baseline.
        p: two-sided, before any correction; None where one unit tells nothing of chance.
        found: interval, and the difference that a t-test can detect.
        gained: questions that only the model has right; None where answers are no such.
        lost: those that only the baseline has right.
    """

    test: str
    n: int
    units: int
    difference: float
    p: float | None
    found: Difference
    gained: int | None = None
    lost: int | None = None

    @property
    def detectable(self) -> Range | None:
        """The range of the smallest difference that is found at the power.

        Where few answers differ, the error tells of few: an exact test needs more, whatever it is.
        """
        found = self.found.detectable
        if found is None or self.gained is None:
            return found
        least = smallest_exact(self.units, self.n, self.found.level)
        return max(found[0], least), max(found[1], least)


def compare_questions(
    ours: np.ndarray,
    theirs: np.ndarray,
    groups: np.ndarray | None = None,
    level: Level | None = None,
) -> QuestionTest:
    """Test whether two models differ in the mean over the questions.

    Args:
        ours: score of each question.
        theirs: that of the baseline.
        groups: number of the cluster of each; None where each stands by itself.

    Example:
        >>> right, wrong = np.ones(8), np.zeros(8)
        >>> round(compare_questions(right, wrong).p, 7)
        0.0078125
    """
    level = level or Level()
    gaps = ours - theirs
    binary = bool(np.isin(ours, (0, 1)).all() and np.isin(theirs, (0, 1)).all())
    sums = gaps if groups is None else np.bincount(groups, weights=gaps)
    sizes = np.ones(len(gaps)) if groups is None else np.bincount(groups)
    mean = math.fsum(gaps) / len(gaps)
    if binary and groups is None:
        found = adjusted_difference(int((gaps > 0).sum()), int((gaps < 0).sum()), len(gaps), level)
    else:
        found = _of_clusters(sums, sizes, mean, level)
    if not binary:
        return QuestionTest(
            test=T_TEST, n=len(gaps), units=len(sums), difference=mean, p=_p(found), found=found
        )
    return QuestionTest(
        test=EXACT if groups is None else CLUSTERS,
        n=len(gaps),
        units=len(sums),
        difference=mean,
        p=sign_test([round(one) for one in sums.tolist()]) if len(sums) > 1 else None,
        found=found,
        gained=int((gaps > 0).sum()),
        lost=int((gaps < 0).sum()),
    )


def compare_tasks(
    ours: Sequence[float], theirs: Sequence[float], questions: int, level: Level | None = None
) -> QuestionTest:
    """Test whether two models differ in the mean of tasks, which stand for others of their kind.

    Args:
        ours: score of each task.
        theirs: that of the baseline.
        questions: of all tasks together.
    """
    found = replace(paired_difference(ours, theirs, level), exact=False)
    return QuestionTest(
        test=T_TEST,
        n=questions,
        units=len(ours),
        difference=found.mean or 0.0,
        p=_p(found),
        found=found,
    )


def _p(found: Difference) -> float | None:
    """Return p of no difference: differences that cancel do not speak against it."""
    return 1.0 if found.flat and found.mean == 0 else found.p


def sign_test(sums: Sequence[int]) -> float:
    """Return the exact probability that sums of free signs are as far from 0, in either direction.

        P(|sum_i e_i s_i| >= |sum_i s_i|)   with   e_i = -1 or 1, each with probability 1/2

    With sums of -1, 0 and 1 this is McNemar's exact test.

    Source: mcnemar47 for questions by themselves; Own for clusters.

    Args:
        sums: of each cluster: questions gained less questions lost.

    Example:
        >>> round(sign_test([1] * 8 + [0] * 5), 7), round(sign_test([3, 1, -2]), 7)
        (0.0078125, 0.75)
    """
    from scipy.stats import binom

    counts = np.bincount(np.abs(np.asarray(sums, dtype=int)))
    distribution = np.ones(1)  # probability of each number of steps from the lowest sum
    for size, count in enumerate(counts.tolist()):
        if size and count:
            part = np.zeros(size * count + 1)
            part[::size] = binom.pmf(np.arange(count + 1), count, 0.5)
            distribution = np.convolve(distribution, part)
    most = len(distribution) - 1  # sums run from -most to most in steps of 2
    far = abs(sum(sums))
    places = np.abs(2 * np.arange(len(distribution)) - most)
    return min(1.0, float(distribution[places >= far].sum()))


def smallest_exact(units: int, n: int, level: Level) -> float:
    """Return the smallest difference of shares that an exact test finds at the power.

        s units / n   with   P(Binomial(units, s) >= f) = power   and   2^(1 - f) < alpha

    All of it goes in one direction, at a question in each unit that differs; more than 1 where so
    few units never suffice.

    Source: Own.

    Args:
        units: that change sides, each by itself.
        n: questions.

    Example:
        >>> round(smallest_exact(1000, 1000, Level()), 4), smallest_exact(5, 5, Level())
        (0.0079, 2.0)
    """
    from scipy.special import betaincinv

    fewest = math.floor(-math.log2(level.strictest)) + 2
    if fewest > units:
        return 2.0
    return float(betaincinv(fewest, units - fewest + 1, level.power)) * units / n


def adjusted_difference(gained: int, lost: int, n: int, level: Level) -> Difference:
    """Return the interval of a difference of shares of the same questions.

        (g' - l') +- t sqrt((g' + l' - (g' - l')^2) / (n + 2))   with   g' = (g + 1) / (n + 2)

    and l' likewise: a question more on either side keeps the error above 0.

    Source: bonett12, with t of n - 1 degrees in the place of z.

    Example:
        >>> found = adjusted_difference(8, 0, 220, Level())
        >>> round(found.low, 4), round(found.high, 4)
        (0.0084, 0.0637)
    """
    more, less = (gained + 1) / (n + 2), (lost + 1) / (n + 2)
    mean = more - less
    error = math.sqrt((more + less - mean**2) / (n + 2))
    if n < 2:
        return Difference(kind="paired", n=n, mean=mean)
    return Difference(kind="paired", n=n, mean=mean, error=error, freedom=n - 1, level=level)


def _of_clusters(sums: np.ndarray, sizes: np.ndarray, mean: float, level: Level) -> Difference:
    """Return the mean over questions with the error of clusters that stand for others.

        sqrt(sum_c (s_c - m n_c)^2 / (1 - h_c)) / n   with   h_c = n_c / n
        1 / (sum_c q_c^2 (1 - 2 h_c) + (sum_c q_c h_c)^2) degrees   with   q_c = h_c / (1 - h_c)

    Of clusters of one size, as of questions by themselves, that is the paired t-test of their sums.

    Source: bell02, for a mean: CR2 with Satterthwaite's degrees.
    """
    count = len(sums)
    if count < 2:
        return Difference(kind="paired", n=count, mean=mean, exact=False)
    shares = sizes / sizes.sum()
    odds = shares / (1 - shares)
    rest = ((sums - mean * sizes) / np.sqrt(1 - shares)).tolist()
    error = math.sqrt(math.fsum(one**2 for one in rest)) / float(sizes.sum())
    freedom = 1 / float(odds**2 @ (1 - 2 * shares) + (odds @ shares) ** 2)
    flat = error <= 1e-12 * max(1.0, abs(mean))
    return Difference(
        kind="paired",
        n=count,
        mean=mean,
        error=0.0 if flat else error,
        freedom=freedom,
        flat=flat,
        exact=False,
        level=level,
    )
