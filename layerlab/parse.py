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


def check_text(found: Any) -> Any:
    r"""Give back what JSON said, where every text in it is one.

    Raises:
        ValueError: one holds half of a surrogate pair, which JSON can name and UTF-8 cannot hold.

    Example:
        >>> check_text(json_of(r'{"a": ["\ud83d"]}'))
        Traceback (most recent call last):
        ValueError: it holds half of a surrogate pair ('\ud83d'), which is no text
    """
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeEncodeError as error:
        half = error.object[error.start]
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
