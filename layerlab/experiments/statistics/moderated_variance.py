"""Moderated variances: those of several arms, each shrunk towards their common value.

With three seeds a variance of its own says little. Where arms vary alike, what they share says
more; where they do not, each must keep its own. How much they differ decides how far each is drawn.

Source: smyth04, sections 3 to 6; as limma's `squeezeVar` computes it.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

# Degrees of freedom that the arms together may lend to one, and no more than there are other arms.
# A few cannot tell more, and a noisier one has to keep a part of its own
# (bench/judging/statistics.py).
MOST = 4.0
# What stands in every difference, as a baseline does, is lent a tenth of what its own seeds tell at
# most; what stands in half of the others, four tenths (bench/judging/statistics.py, noise and
# claims).
LENT = 0.1
# Of the median: what is smaller is taken for it, so that it has a logarithm.
LEAST = 1e-5


@dataclass(frozen=True)
class Prior:
    """The variance common to arms: s_a^2 is scattered about `variance` as with `freedom` degrees.

    Attributes:
        variance: s_0^2.
        freedom: d_0; infinite where the variances differ no more than by chance.
    """

    variance: float
    freedom: float


def prior(variances: ArrayLike, freedoms: ArrayLike) -> Prior:
    """Estimate s_0^2 and d_0 from sample variances: the moments of log s^2.

    Those without a degree of freedom do not count; two or more have to.

    Source: smyth04, section 6.2; with unequal degrees of freedom, limma's `fitFDist`.

    Example:
        >>> found = prior([1.0, 1.0, 30.0], [2, 2, 2])
        >>> round(found.variance, 3), round(found.freedom, 3)
        (2.692, 1.641)
    """
    from scipy.special import digamma, polygamma

    kept = np.array(freedoms, float) > 1e-9
    given, free = np.array(variances, float)[kept], np.array(freedoms, float)[kept]
    given = np.maximum(given, LEAST * np.median(given))
    logs = np.log(given) - digamma(free / 2) + np.log(free / 2)
    spread = float(logs.var(ddof=1) - polygamma(1, free / 2).mean())
    if spread <= 0:
        return Prior(float(np.average(given, weights=free)), math.inf)
    freedom = 2 * inverse_trigamma(spread)
    middle = logs.mean() + digamma(freedom / 2) - math.log(freedom / 2)
    return Prior(math.exp(middle), freedom)


def moderate(variance: float, freedom: float, common: Prior) -> float:
    """Return an arm's variance, shrunk towards the common one.

    (d_0 s_0^2 + d s^2) / (d_0 + d)

    Source: smyth04, equation (2).
    """
    if math.isinf(common.freedom):
        return common.variance
    lent = common.freedom
    return (lent * common.variance + freedom * variance) / (lent + freedom)


def inverse_trigamma(value: float) -> float:
    """Return the x at which the trigamma function has a value, by Newton on its reciprocal.

    Source: smyth04, appendix.
    """
    from scipy.special import polygamma

    found = 0.5 + 1 / value
    for _ in range(50):
        there = float(polygamma(1, found))
        step = there * (1 - there / value) / float(polygamma(2, found))
        found += step
        if -step / found < 1e-10:
            break
    return found
