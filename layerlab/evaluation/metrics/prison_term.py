"""Prison terms, compared by their logarithms."""

import math
import re

from layerlab.evaluation.metrics.chinese_numerals import with_digits
from layerlab.evaluation.metrics.mark import Mark

# The distance at which a score is 0, and what a missing answer costs.
LIMIT_MONTHS = 216
# Python reads no whole number of more digits.
_DIGITS = 4000


def log_distance(months: int, gold_months: int) -> float:
    """Return the distance of two prison terms: |ln(gold + 1) - ln(months + 1)|.

    0 means they are the same; ln 2 = 0.69 that one is about twice the other.

    Source: fei23, normalized log-distance.
    Unit: nats, of months.

    Example:
        >>> log_distance(12, 12)
        0.0
    """
    return abs(math.log(gold_months + 1) - math.log(months + 1))


def term_score(output: str, gold_months: int) -> Mark:
    """Return how near the term in an output is to the gold one: 1 - log distance / ln 216.

    1 means the same number of months; 0 a distance of ln 216, and no term at all. A term further
    off than that is below 0, as the source leaves it, so that the mean of the rows is its score.

    Source: fei23, normalized log-distance.
    Unit: none.
    """
    months = months_in(output)
    if months is None:
        return Mark(0.0, True)
    return Mark(1 - log_distance(months, gold_months) / math.log(LIMIT_MONTHS))


def months_in(output: str) -> int | None:
    """Return the first number of months in a text; without one, its first number of years times 12.

    A date counts too where it is the first: "2016年3月" reads as 3 months, as in the source.

    Source: fei23, prison terms.
    Unit: months.

    Example:
        >>> months_in("有期徒刑三年六个月"), months_in("判处二年"), months_in("不构成犯罪")
        (6, 24, None)
    """
    text = with_digits(output)
    for unit, length in (("个月", 1), ("月", 1), ("年", 12)):
        # From the first of its digits alone: tried from each of n, they take n squared steps.
        if found := re.search(rf"(?<!\d)(\d+){unit}", text):
            return int(found[1][:_DIGITS]) * length
    return None
