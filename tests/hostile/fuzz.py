"""Inputs for a reader until its time is over; each time the same, so that a change is at fault."""

import functools
import inspect
import time
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis.strategies import SearchStrategy

SECONDS = 60  # for each reader
ROUND = settings(
    max_examples=100, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)


def fuzz(**inputs: SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test on drawn inputs for a minute; whatever else it takes are fixtures."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            end = time.monotonic() + SECONDS
            for number in count():
                ROUND(seed(number)(given(**inputs)(test)))(**fixtures)
                if time.monotonic() > end:
                    return

        known = inspect.signature(test).parameters
        left = [one for name, one in known.items() if name not in inputs]
        run.__signature__ = inspect.Signature(left)  # type: ignore[attr-defined]
        marked: Callable[..., None] = pytest.mark.fuzz(pytest.mark.full(run))
        return marked

    return decorate
