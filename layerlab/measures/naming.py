"""Names of measures as a user types them, with options in brackets; read without torch."""

import ast
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from layerlab.errors import UserError
from layerlab.known_names import name_here, unknown_measure
from layerlab.validation import find_twice

EXAMPLE = "--measures 'diversity,dimension(epsilon=0.9)'"
# What one reading of a measure shows that somebody may have named it twice for.
BOTH = {"lens": " (tuned=True shows both lenses)"}

Named = tuple[str, dict[str, Any]]


def parse_names(entry: Any, known: Iterable[str]) -> list[Named]:
    """Return the names of an entry, each with its options.

    Args:
        entry: names with commas, options in brackets.
        known: the names of all measures.

    Raises:
        UserError: it cannot be read, or names a measure that is not known.

    Example:
        >>> parse_names("diversity, dimension(epsilon=0.9)", ["diversity", "dimension"])
        [('diversity', {}), ('dimension', {'epsilon': 0.9})]
    """
    if not isinstance(entry, str):
        raise unreadable(entry)
    text = entry.strip().strip(",")
    try:
        parsed = ast.parse(f"({text},)" if text else "()", mode="eval").body
        assert isinstance(parsed, ast.Tuple)
        found = [_one(node) for node in parsed.elts]
    except (SyntaxError, ValueError, TypeError) as error:
        for part in text.split(","):
            if name_here(part) is not None:
                raise unknown_measure(part.strip(), known) from error
        raise unreadable(entry) from error
    for name, _ in found:
        if name not in known:
            raise unknown_measure(name, known)
    return found


def check_once(named: Sequence[Named]) -> None:
    """Refuse a measure that is named twice.

    Raises:
        UserError: one is.
    """
    for name, count in Counter(name for name, _ in named).items():
        if count > 1:
            merged: dict[str, Any] = {}
            for one, options in named:
                merged |= options if one == name else {}
            given = ", ".join(f"{key}={value!r}" for key, value in merged.items())
            typed = f"{name}({given})" if given else name
            raise UserError(
                f"the measure {name!r} is named {count} times; name it once{BOTH.get(name, '')}: "
                f"type --measures {shlex.quote(typed)}"
            )


def reads_text(name: str, alone: Iterable[str]) -> UserError:
    """Return the error that a measure needs more than weights, with those that do not."""
    return UserError(
        f"measure {name!r} reads a text, and --weights (in Python weights=True) reads none; "
        f"name of these: {', '.join(alone)}"
    )


def unreadable(entry: Any) -> UserError:
    """Return the error that says how measures are named."""
    return UserError(
        f"cannot read the measures {entry!r}; expected names with commas, options in brackets: "
        f"type {EXAMPLE}"
    )


def _one(node: ast.expr) -> Named:
    """Return one name, or one name called with keywords.

    Raises:
        ValueError: it is anything else.
        UserError: an option is given twice.
    """
    call = node if isinstance(node, ast.Call) else None
    label = call.func if call else node
    if not isinstance(label, ast.Name) or (call and call.args):
        raise ValueError(ast.dump(node))
    keywords = call.keywords if call else []
    if twice := find_twice(str(word.arg) for word in keywords):
        raise UserError(f"{label.id}({twice}=...) is given twice; type it once")
    return label.id, {str(word.arg): _value(word.value) for word in keywords}


def _value(node: ast.expr) -> Any:
    """Return what Python would read, and a bare name as text.

    Shells are apt to take quotes away.
    """
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)
