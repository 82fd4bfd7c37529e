"""Levels of tests that come one after the other, without an end that is known beforehand.

Each test has its level before its data are seen, by its place and by what was found earlier.
"""

from collections.abc import Callable, Sequence

EXPONENT = 1.6  # of the weights; how fast the first of many tests spends what there is

WeightRule = Callable[[int], float]


def weigh(number: int) -> float:
    """Return the part of all weight that a test has by its place; the parts of all sum to one.

    gamma_j = j^(-1.6) / zeta(1.6)

    Source: ramdas18.

    Args:
        number: of the test, from 1.

    Example:
        >>> [round(weigh(one), 4) for one in (1, 2, 10)]
        [0.4375, 0.1443, 0.011]
    """
    from scipy.special import zeta

    return float(number**-EXPONENT / zeta(EXPONENT))


def lord_level(
    number: int, found: Sequence[int], *, rate: float, first: float, weights: WeightRule = weigh
) -> float:
    """Return the level of a test at which the rate of false discoveries stays below `rate`.

    alpha_t = w_0 gamma_t + (alpha - w_0) gamma_(t - r_1) + alpha sum_(j > 1) gamma_(t - r_j)

    LORD++, and where tests overlap its asynchronous form: r_j tests had begun when the j-th
    discovery was known. Before the first discovery all levels together are at most w_0, so that
    with nothing to find anything is found with a probability of w_0 at most, however tests depend
    on each other. The rate needs p that are valid given all that was seen before.

    Source: ramdas17; zrnic21; javanmard18.

    Args:
        number: of the test, from 1.
        found: r_j, rising.
        rate: alpha, of false ones among what is found, on average.
        first: w_0, what can be spent before the first discovery.

    Example:
        >>> round(lord_level(1, [], rate=0.1, first=0.05), 4)
        0.0219
        >>> round(lord_level(2, [1], rate=0.1, first=0.05), 4)
        0.0291
    """
    pay = [rate - first, *[rate] * (len(found) - 1)]
    earned = (one * weights(number - start) for one, start in zip(pay, found, strict=False))
    return first * weights(number) + sum(earned)


def fallback_level(number: int, kept: float, *, alpha: float, weights: WeightRule = weigh) -> float:
    """Return the level of a test at which there is any false discovery with probability `alpha`.

    alpha_k = alpha gamma_k + R_(k-1) alpha_(k-1)

    Online fallback: alpha spending in which what was found hands its level on to the next.

    Source: tian21.

    Args:
        number: of the test, from 1.
        kept: levels of what was found since the test before began; each is handed on once.

    Example:
        >>> round(fallback_level(2, 0.0219, alpha=0.05), 4)
        0.0291
    """
    return alpha * weights(number) + kept
