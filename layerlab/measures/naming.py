"""Names of measures as a user types them, with options in brackets."""

import ast
from collections.abc import Mapping
from typing import Any

from layerlab.errors import UserError
from layerlab.measures.measure import Measure
from layerlab.validation import suggest

EXAMPLE = "--measures 'diversity,dimension(epsilon=0.9)'"


def read_names(entry: Any, known: Mapping[str, Measure]) -> list[Measure]:
    """Return the measures that an entry names, with their options set.

    Args:
        entry: names with commas, options in brackets; a measure passes as it is.
        known: every measure by its name.

    Raises:
        UserError: it cannot be read, or names a measure that is not known.
    """
    if isinstance(entry, Measure):
        return [entry]
    if not isinstance(entry, str):
        raise unreadable(entry)
    text = entry.strip().strip(",")
    try:
        parsed = ast.parse(f"({text},)" if text else "()", mode="eval").body
        assert isinstance(parsed, ast.Tuple)
        return [_one(node, known) for node in parsed.elts]
    except (SyntaxError, ValueError, TypeError) as error:
        raise unreadable(entry) from error


def unreadable(entry: Any) -> UserError:
    """Return the error that says how measures are named."""
    return UserError(
        f"cannot read the measures {entry!r}; expected names with commas, options in brackets: "
        f"type {EXAMPLE}"
    )


def _one(node: ast.expr, known: Mapping[str, Measure]) -> Measure:
    """Return the measure of one name, or of one name called with keywords.

    Raises ValueError for anything else.
    """
    call = node if isinstance(node, ast.Call) else None
    label = call.func if call else node
    if not isinstance(label, ast.Name) or (call and call.args):
        raise ValueError(ast.dump(node))
    if label.id not in known:
        hint = suggest(label.id, known)
        raise UserError(f"no measure is called {label.id!r}; {hint}known: {', '.join(known)}")
    measure = known[label.id]
    words = call.keywords if call else []
    return measure.given(**{str(word.arg): _value(word.value) for word in words})


def _value(node: ast.expr) -> Any:
    """Return what Python would read, and a bare name as text.

    Shells are apt to take quotes away.
    """
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)
