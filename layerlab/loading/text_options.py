"""What may be said of the text that is read, checked without torch, so that it costs no time."""

from collections.abc import Mapping
from typing import Any

from layerlab.errors import UserError

LEAST = {"samples": 1, "context": 2}
# As many samples as a measure of all tokens together needs.
AUTO = "auto"


def check_lengths(**given: Any) -> None:
    """Refuse impossible lengths, given by their names in `LEAST`; None is the usual one.

    Raises:
        UserError: one is no whole number, or too small.
    """
    for name, value in given.items():
        least = LEAST[name]
        if name == "samples" and value == AUTO:
            continue
        if value is not None and (not isinstance(value, int) or value < least):
            raise UserError(f"{name} is {value!r}; expected a whole number, at least {least}")


def parse_samples(text: str) -> int | str:
    """Return how many samples are asked for: a number, or `AUTO`.

    Raises:
        UserError: it is neither.
    """
    if text == AUTO:
        return text
    if not text.lstrip("-").isdecimal() or int(text) < LEAST["samples"]:
        given = text if text.lstrip("-").isdecimal() else repr(text)
        raise UserError(
            f"samples is {given}; expected a whole number, at least {LEAST['samples']}, or auto: "
            "type --samples auto"
        )
    return int(text)


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
