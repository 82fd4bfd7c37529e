"""False-discovery rates over all tests of a page: how many of its words may be chance.

A recipe corrects its own tests for one another. Nothing corrects a page that gathers recipes and
studies, so it shows beside each word the rate of Benjamini and Hochberg.
"""

from collections.abc import Mapping, Sequence
from typing import Any


def find_p_value(claim: Mapping[str, Any]) -> float | None:
    """Return the p-value of a comparison's claim, or, where the claim fails, of the failure.

    What fails does so by the surest of its pairs, so its p is that pair's times their number.
    """
    if claim["p"] is None or claim["verdict"] != "fails":
        return claim["p"]
    return min(1.0, claim["p"] * len(claim["pairs"]))


def rates(chances: Sequence[float | None]) -> list[float | None]:
    """Return the false-discovery rate at which each test is just a discovery.

    None where nothing was tested.

    Source: benjamini95. Tests that share a baseline depend on one another positively, under which
    the rate still holds.

    Example:
        >>> rates([0.01, None, 0.04])
        [0.02, None, 0.04]
    """
    # Late: the list of studies needs no statistics.
    from scipy.stats import false_discovery_control

    known = [one for one in chances if one is not None]
    found = iter(false_discovery_control(known).tolist() if known else [])
    return [None if one is None else next(found) for one in chances]


def format_rate(rate: float | None) -> str:
    """Format a rate for a table: two digits, or a dash where there is none."""
    return "-" if rate is None else f"{rate:.2g}"
