"""Results that all batches share: made by the first that asks, while the others wait."""

from collections.abc import Callable
from functools import cache, wraps
from threading import RLock
from typing import ParamSpec, TypeVar, cast

Arguments = ParamSpec("Arguments")
Made = TypeVar("Made")


def once(make: Callable[Arguments, Made]) -> Callable[Arguments, Made]:
    """Make a function compute each result once, even if several threads ask at the same time."""
    kept = cast(Callable[Arguments, Made], cache(make))
    alone = RLock()

    @wraps(make)
    def make_once(*args: Arguments.args, **options: Arguments.kwargs) -> Made:
        with alone:
            return kept(*args, **options)

    return make_once
