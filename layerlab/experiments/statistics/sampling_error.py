"""The error that a choice of items adds to a mean over seeds: of text blocks, or of questions."""

from collections.abc import Sequence

import numpy as np

from layerlab.experiments.statistics.joined_variance import Range, satterthwaite


def sampling_error(parts: Sequence[tuple[float, np.ndarray]]) -> Range:
    """Return the standard error that items add to a weighted sum of means, with its degrees.

        sum_p w_p^2 (MS_items - MS_rest) / (seeds x items)

    Items stand for those that might have been chosen, as seeds stand for runs; of several parts the
    degrees are Satterthwaite's.

    Args:
        parts: weights with their tables of seeds x items, two items at least.

    Example:
        >>> sampling_error([(1.0, np.array([[1.0, 3.0], [1.0, 3.0]]))])
        (1.0, 1)
    """
    variance, between = 0.0, []
    for weight, table in parts:
        n, count = table.shape
        means = table.mean(0)
        items = n * means.var(ddof=1)
        rest = 0.0
        if n > 1:
            left = table - means - table.mean(1, keepdims=True) + table.mean()
            rest = float((left**2).sum()) / ((n - 1) * (count - 1))
        variance += weight**2 * (items - rest) / (n * count)
        between.append((weight**2 * items / (n * count), count - 1))
    if len(between) == 1:
        return float(np.sqrt(max(0.0, variance))), between[0][1]
    most = sum(freedom for _, freedom in between)
    return float(np.sqrt(max(0.0, variance))), min(satterthwaite(between)[1], most)
