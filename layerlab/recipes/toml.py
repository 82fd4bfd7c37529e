"""Writes a recipe as TOML that can be run again, one dotted key a line."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from layerlab.records.parse import quote_toml

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def write_toml(recipe: Mapping[str, Any]) -> str:
    """Write the settings of a recipe; None is left out.

    Example:
        >>> print(write_toml({"name": "a", "train": {"batch_size": 16, "micro_batch_size": None}}))
        name = "a"
        train.batch_size = 16
    """
    return "\n".join(_lines(recipe, ()))


def _lines(table: Mapping[str, Any], path: Sequence[str]) -> list[str]:
    found: list[str] = []
    for name, value in table.items():
        here = (*path, str(name))
        if isinstance(value, Mapping):
            found += _lines(value, here)
        elif value is not None:
            found.append(f"{'.'.join(map(_key, here))} = {write_value(value)}")
    return found


def write_value(value: Any) -> str:
    """Write a value on one line; None in a list or table is left out.

    Example:
        >>> print(write_value({"a": [1.0, None, True], "b.c": "x"}))
        { a = [1.0, true], "b.c" = "x" }
    """
    if isinstance(value, Mapping):
        inner = ", ".join(
            f"{_key(str(name))} = {write_value(one)}"
            for name, one in value.items()
            if one is not None
        )
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(write_value(one) for one in value if one is not None)}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    return quote_toml(str(value))


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else quote_toml(name)
