"""A table in Markdown, for the pages that declarations write; part of `make docs`."""

from collections.abc import Iterable, Sequence
from typing import Any

# Sentences that stored results hold, and how they are said today.
SAID = {
    "an arm that would rather have another is judged too harshly": "an arm with a different "
    "optimal learning rate may look worse than it is"
}


def listed(remarks: Iterable[str]) -> str:
    """Return remarks of a stored result as a list, in the words of today."""
    text = "\n".join(f"- {one}" for one in remarks)
    for before, now in SAID.items():
        text = text.replace(before, now)
    return text


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return lines of cells between bars; a bar in a cell would end it, also inside code."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in lines)


def bounds(lines: Sequence[Any]) -> list[str]:
    """Return the section of a measure's bounds, or of lines drawn beside a quantity."""
    if not lines:
        return []
    limited = any(one.side != "beside" for one in lines)
    title, head = ("Bounds", "what holds") if limited else ("Drawn beside", "line")
    signs = {"upper": "<=", "lower": ">=", "beside": "drawn beside"}
    rows = [(f"`{one.column}` {signs[one.side]} `{one.limit}`", one.source) for one in lines]
    return [f"## {title}", table((head, "source"), rows)]
