"""What all batches of a study share: made by the first that asks, while the others wait."""

from collections.abc import Callable
from functools import cache, wraps
from threading import RLock
from typing import ParamSpec, TypeVar, cast

Given = ParamSpec("Given")
Made = TypeVar("Made")


def once(make: Callable[Given, Made]) -> Callable[Given, Made]:
    """Make a function compute each result once, even if several threads ask at the same time."""
    kept = cast(Callable[Given, Made], cache(make))
    alone = RLock()

    @wraps(make)
    def make_once(*args: Given.args, **options: Given.kwargs) -> Made:
        with alone:
            return kept(*args, **options)

    return make_once
