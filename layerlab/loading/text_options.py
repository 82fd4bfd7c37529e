"""What may be said of the text that is read, checked without torch, so that it costs no time."""

from collections.abc import Mapping
from typing import Any

from layerlab.errors import UserError

LEAST = {"samples": 1, "context": 2}


def check_lengths(**given: Any) -> None:
    """Refuse impossible lengths, given by their names in `LEAST`; None is the usual one.

    Raises:
        UserError: one is no whole number, or too small.
    """
    for name, value in given.items():
        least = LEAST[name]
        if value is not None and (not isinstance(value, int) or value < least):
            raise UserError(f"{name} is {value!r}; expected a whole number, at least {least}")


def check_unread(given: Mapping[str, Any]) -> None:
    """Refuse options beside `--weights` that mean nothing there.

    Args:
        given: options that speak of a text, or of how a model is loaded, with what the user gave.

    Raises:
        UserError: one of them was given.
    """
    for name, value in given.items():
        if value is not None and value is not False:
            raise UserError(
                f"--weights reads no text and runs no model, so that {name} means nothing beside "
                f"it; leave {name} out, or --weights (in Python weights=True)"
            )
