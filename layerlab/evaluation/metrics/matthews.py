"""Matthews correlation: right answers beyond those that class sizes alone would give."""

import math
from collections import Counter
from collections.abc import Hashable, Sequence


def matthews(gold: Sequence[Hashable], predicted: Sequence[Hashable]) -> float:
    """Return the correlation of two labellings of the same questions, with any number of classes.

    R = (c n - sum_k p_k t_k) / sqrt((n^2 - sum_k p_k^2) (n^2 - sum_k t_k^2)), with n questions, c
    right ones, p_k times class k was answered and t_k times it was right.

    1 means all are right; 0 that the answers say nothing, as when they are all the same; below 0
    they say the opposite. Not confined to [0, 1].

    Source: gorodkin04.
    Unit: none.

    Example:
        >>> matthews([1, 1, 0, 0], [1, 1, 0, 0]), matthews([1, 1, 0, 0], [1, 1, 1, 1])
        (1.0, 0.0)
    """
    count = len(gold)
    answered, wanted = Counter(predicted), Counter(gold)
    right = sum(one == other for one, other in zip(gold, predicted, strict=True))
    chance = sum(answered[label] * wanted[label] for label in answered)
    spread = (count**2 - sum(n**2 for n in answered.values())) * (
        count**2 - sum(n**2 for n in wanted.values())
    )
    return (right * count - chance) / math.sqrt(spread) if spread else 0.0
