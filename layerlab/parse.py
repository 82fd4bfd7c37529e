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


def whole(found: Any) -> Any:
    r"""The same, where every text in it is one.

    Raises:
        ValueError: a text holds half of a surrogate pair, which JSON can name and nobody write.

    Example:
        >>> whole(json_of(r'{"a": ["\ud83d"]}'))
        Traceback (most recent call last):
        ValueError: it holds half of a surrogate pair ('\ud83d'), which is no text
    """
    if isinstance(found, dict):
        for name, value in found.items():
            whole(name), whole(value)
    elif isinstance(found, list):
        for value in found:
            whole(value)
    elif isinstance(found, str) and not found.isascii():
        try:
            found.encode()
        except UnicodeEncodeError as error:
            half = found[error.start]
            raise ValueError(
                f"it holds half of a surrogate pair ({half!r}), which is no text"
            ) from None
    return found


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
