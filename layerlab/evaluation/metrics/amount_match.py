"""Amounts of money found in an output."""

import re

from layerlab.evaluation.metrics.mark import Mark


def numbers_in(output: str) -> list[float]:
    """Return the numbers of a text in order; signs and thousands separators are not read.

    Source: fei23, criminal damages.

    Example:
        >>> numbers_in("共计8500.0元，其中1,500元")
        [8500.0, 1.0, 500.0]
    """
    return [float(found) for found in re.findall(r"\d+\.?\d*", output)]


def number_match(output: str, gold: float) -> Mark:
    """Score 1 if the gold number occurs in an output, else 0; no number is an abstention.

    Source: fei23, criminal damages.

    Example:
        >>> number_match("8500元", 8500.0)
        Mark(score=1.0, abstained=False)
    """
    found = numbers_in(output)
    return Mark(float(gold in found), not found)
