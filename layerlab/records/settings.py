"""Nested settings as paths and values."""

from collections.abc import Iterator, Mapping
from typing import Any


def flatten(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Flatten paths and values of a nested mapping; lists are values."""
    for name, value in content.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
