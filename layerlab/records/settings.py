"""Nested settings as paths and values."""

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any


def flatten(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Flatten paths and values of a nested mapping; lists are values."""
    for name, value in content.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def matches(path: str, patterns: Sequence[str]) -> bool:
    """Return whether a path is one of those that are named, or lies in a section that is.

    Example:
        >>> matches("train.batch_size", ["train.*"])
        True
        >>> matches("train.batch_size", ["data", "machine.*"])
        False
    """
    return any(fnmatchcase(path, pattern) or path.startswith(f"{pattern}.") for pattern in patterns)
