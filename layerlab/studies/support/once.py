"""Results that all batches share: made by the first that asks, while the others wait."""

from collections.abc import Callable
from functools import wraps
from threading import RLock
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

Arguments = ParamSpec("Arguments")
Made = TypeVar("Made")
_PLAIN = (str, int, type(None))


def compute_once(make: Callable[Arguments, Made]) -> Callable[Arguments, Made]:
    """Make a function compute each result once, even if several threads ask at the same time.

    What is of an object, as of a model that a user named, is kept for as long as that is.
    """
    kept: WeakKeyDictionary[Any, dict[Any, Made]] = WeakKeyDictionary()
    alone = RLock()

    @wraps(make)
    def make_once(*args: Arguments.args, **options: Arguments.kwargs) -> Made:
        owner = next((one for one in args if not isinstance(one, _PLAIN)), make)
        key = (*(one for one in args if one is not owner), *sorted(options.items()))
        with alone:
            found = kept.setdefault(owner, {})
            if key not in found:
                found[key] = make(*args, **options)
            return found[key]

    return make_once
