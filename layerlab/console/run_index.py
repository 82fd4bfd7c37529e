"""The index of a folder for a terminal: what each entry came to, and where its page is."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from layerlab.console.tables import plain
from layerlab.records.index.entry import DAMAGED, DIVERGED, INTERRUPTED, RUNNING, Entry

STYLES = {RUNNING: "cyan", INTERRUPTED: "yellow", DIVERGED: "red", DAMAGED: "red"}
# Columns of a kind and a state: the longest word of each.
KIND, STATE = 10, 11


def render_index(
    entries: Sequence[Entry], remarks: Sequence[str], folder: Path, most: int | None = None
) -> RenderableType:
    """Return the lines of an index: each path has one of its own, so that it can be copied.

    Args:
        entries: the newest first.
        remarks: on what was not looked into.
        folder: that was searched; paths are shown from where one stands.
        most: entries that are shown; all of them where it is left out.
    """
    notes = [plain(f"- {remark}", "yellow") for remark in remarks]
    if not entries:
        empty = f"Nothing of layerlab's is in {folder}; type for example layerlab train smoke"
        return Group(plain(empty), *notes)
    first = entries[:most]
    lines = [line for one in first for line in _render_entry(one, folder)]
    counted = [plain(count_entries(entries))]
    if len(first) < len(entries):
        counted.append(plain(f"The newest {len(first)} of {len(entries)}; --all shows the others."))
    return Group(*lines, Text(), *counted, *notes)


def count_entries(entries: Sequence[Entry]) -> str:
    """Return how many entries there are of each kind."""
    counts = Counter(one.kind for one in entries)
    parts = [f"{count} {kind if count == 1 else _plural(kind)}" for kind, count in counts.items()]
    return ", ".join(parts)


def _plural(kind: str) -> str:
    return {"study": "studies"}.get(kind, f"{kind}s")


def _render_entry(entry: Entry, folder: Path) -> Iterator[RenderableType]:
    style = STYLES.get(entry.state, "")
    head = Text(f"{entry.changed:%Y-%m-%d %H:%M}  {entry.kind:<{KIND}}  ", overflow="fold")
    yield (
        head.append(f"{entry.state:<{STATE}}", style).append("  ").append(plain(entry.name, "bold"))
    )
    path = plain(str(folder / (entry.page or entry.folder)), "dim")
    path.overflow = "fold"
    for line in (plain(entry.headline, style if entry.state == DAMAGED else ""), path):
        yield Padding.indent(line, 2)
