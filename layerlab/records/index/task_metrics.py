"""Metrics of a task of lm-eval: which of them are shares, that are shown in percent."""

from collections.abc import Mapping
from typing import Any


def is_share(row: Mapping[str, Any]) -> bool:
    """Return whether a metric is a mean of shares, which is shown in percent.

    Where a row does not say it, as those of earlier versions, its interval has to.

    Example:
        >>> is_share({"low": 0.2, "high": 0.4}), is_share({"low": 20.0, "high": 31.0})
        (True, False)
        >>> is_share({"low": 1.1, "high": 1.3, "share": False})  # nats
        False
    """
    if isinstance(value := row.get("share"), bool):
        return value
    low, high = row.get("low"), row.get("high")
    return low is not None and high is not None and -1 <= low and high <= 1.5
