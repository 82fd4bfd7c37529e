"""Checks of options of measures, without torch: formats, a saliency."""

from collections.abc import Mapping
from typing import Any

from layerlab.errors import UserError
from layerlab.numerics.formats.format_list import parse_formats
from layerlab.validation import short_repr

SALIENCY = "saliency"


def check_formats(options: Mapping[str, Any]) -> None:
    """Refuse number formats that there are not.

    Raises:
        UserError: one is.
    """
    parse_formats(options["formats"])


def check_backward(formats: Any, backward: bool) -> None:
    """Refuse to measure errors of gradients in no format.

    Raises:
        UserError: there is none.
    """
    if backward and formats is None:
        raise UserError(
            "gradient errors need a number format to be measured in; type for example "
            "--formats bf16 --backward"
        )


def saliency_options(
    *, text: str | None, target: str | None, foil: str | None, asked: bool
) -> dict[str, str]:
    """Return the options of a saliency that a user set.

    Args:
        asked: whether a saliency is measured in any case.

    Raises:
        UserError: a word without a text to ask it of.
    """
    given = {"text": text, "target": target, "foil": foil}
    options = {name: value for name, value in given.items() if value is not None}
    if options and text is None and not asked:
        raise UserError(
            f"--{next(iter(options))} asks about the next token of a text; type for example "
            "--saliency 'I am' --target ' here' --foil ' there'"
        )
    return options


def check_saliency(options: Mapping[str, Any]) -> None:
    """Refuse a question that no model can answer.

    Raises:
        UserError: an empty text, or a target that is its own foil.
    """
    text, target, foil = options["text"], options["target"], options["foil"]
    if text is not None and not text.strip():
        raise UserError("the text of a saliency is empty; give some words, as --saliency 'I am'")
    if foil is not None and foil == target:
        raise UserError(
            f"target and foil are both {short_repr(foil)}, and nothing tells a word from itself; "
            "give two words, as --target ' here' --foil ' there'"
        )
