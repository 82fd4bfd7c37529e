"""A table in Markdown, for the pages that declarations write; part of `make docs`."""

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return lines of cells between bars; a bar in a cell would end it, also inside code."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in lines)
