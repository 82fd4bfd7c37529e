"""JSON and TOML from outside: whatever is wrong with it is one kind of error."""

import json
import tomllib
from typing import Any


def json_of(text: str | bytes, **options: Any) -> Any:
    """What a text in JSON says.

    Raises:
        ValueError: it is not JSON, nested too deeply, or has a number of thousands of digits.

    Example:
        >>> json_of("[" * 9999)
        Traceback (most recent call last):
        ValueError: it is nested too deeply
    """
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def toml_of(text: str) -> dict[str, Any]:
    """What a text in TOML says.

    Raises:
        ValueError: as for JSON.

    Example:
        >>> toml_of("a = " + "[" * 9999)
        Traceback (most recent call last):
        ValueError: it is nested too deeply
    """
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
