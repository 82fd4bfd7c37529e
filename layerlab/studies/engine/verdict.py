"""The word of a verdict: one rule for all studies that hold a number against a threshold.

`decide` is for what has no interval: a count, a proof, a counterexample.

A claim of a size is held against that size: its own where it names one, the source's where the
source prints one. A claim of a direction is held against that direction; where a study asks for a
size of its own on top, what is surely in the direction and surely short of the size is neither
right nor wrong: it is smaller than asked.
"""

from collections.abc import Iterable

from layerlab.studies.engine.statistics import Interval
from layerlab.studies.engine.study import Word


def above(found: Interval, asked: float, neutral: float | None = None) -> Word:
    """Judge whether a number is more than was asked for.

    Args:
        neutral: where there is no effect, if the size that is asked for is the study's own; left
            out, the size belongs to the claim, and what is surely short of it is wrong.

    Example:
        >>> above(Interval(1.02, 1.01, 1.03), 1.05), above(Interval(1.02, 1.01, 1.03), 1.05, 1.0)
        ('fails', 'smaller than asked')
    """
    if found.low > asked:
        return "holds"
    least = asked if neutral is None else neutral
    if found.high <= least:
        return "fails"
    return "smaller than asked" if least < found.low and found.high < asked else "not decided"


def below(found: Interval, asked: float, neutral: float | None = None) -> Word:
    """Judge whether a number is less than was asked for, as `above` with the signs turned."""
    turned = Interval(-found.value, -found.high, -found.low)
    return above(turned, -asked, None if neutral is None else -neutral)


def within(found: Interval, low: float, high: float) -> Word:
    """Judge whether a number lies between two ends, which are the claim's own."""
    return each((above(found, low), below(found, high)))


def apart(found: Interval, other: Interval) -> Word:
    """Judge whether a number is more than another, which has an interval as well."""
    return decide(holds=found.low > other.high, fails=found.high < other.low)


def decide(*, holds: bool | None = None, fails: bool | None = None) -> Word:
    """Judge a claim by what settles it; where one of both is left out, there is no third case.

    Example:
        >>> decide(holds=False), decide(holds=False, fails=False)
        ('fails', 'not decided')
    """
    if not holds if fails is None else fails:
        return "fails"
    return "holds" if fails is None or holds is None or holds else "not decided"


def each(verdicts: Iterable[Word]) -> Word:
    """Judge a claim on several numbers at once: one that fails is enough against it."""
    found = set(verdicts)
    order: tuple[Word, ...] = ("fails", "not decided", "smaller than asked")
    return next((word for word in order if word in found), "holds")


def combine(verdicts: Iterable[Word]) -> Word:
    """Combine several readings of one claim, or repeats of one study: what all of them say."""
    found = set(verdicts)
    return found.pop() if len(found) == 1 else "not decided"
