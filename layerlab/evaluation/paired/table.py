"""Paired evaluations for a terminal; what came from outside is never read as markup."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from layerlab.console.tables import grids, plain
from layerlab.console.units import difference
from layerlab.evaluation.paired.sentences import TASK, is_beyond
from layerlab.records.json_values import Record

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

FLIPS = 6  # questions that are shown
STYLES = {"better": "green", "worse": "red"}
_HEAD = (
    *("over", "verdict", "difference", "interval", "p (Holm)", "flipped", "detectable", "n"),
    *("score", "baseline"),
)


def render_pairs(content: Record, width: int) -> "Group":
    """Return a table for each model, its verdicts in words, the first flips, and remarks."""
    from rich.console import Group

    return Group(*_parts(content, width))


def _parts(content: Record, width: int) -> "Iterator[RenderableType]":
    from rich.text import Text

    for arm in dict.fromkeys(row["arm"] for row in content["rows"]):
        rows = [row for row in content["rows"] if row["arm"] == arm]
        yield plain(f"{arm} against {content['baseline']}, question by question", "bold")
        margined = any(row["within"] is not None for row in rows)
        cells = [[*_cells(row), *([row["within"] or "-"] if margined else [])] for row in rows]
        head = (*_HEAD, *(["within margin"] if margined else []))
        yield grids(head, cells, {"over", "verdict", "within margin"}, width)
        yield Text()
        verdicts = [row for row in rows if row["scope"] != TASK or len(rows) == 1]
        verdicts += [row for row in rows if row not in verdicts and row["verdict"] in STYLES]
        for row in verdicts:
            yield plain(row["said"], STYLES.get(row["verdict"], ""))
        yield Text()
        yield from _flips(content, arm)
    for remark in content["remarks"]:
        yield plain(f"- {remark}", "dim")


def _flips(content: Record, arm: str) -> "Iterator[RenderableType]":
    from rich.text import Text

    found = [one for one in content["flipped"] if one["arm"] == arm]
    if not found:
        return
    limit = f"; the first {FLIPS}" if len(found) > FLIPS else ""
    yield plain(f"{len(found):,} questions flipped{limit}", "bold")
    for one in found[:FLIPS]:
        way = "gained" if one["right_now"] else "lost"
        yield plain(f"{way}: {one['task']}, question {one['question']}: {one['text']}")
        yield plain(
            f"  right: {one['right']} | {arm}: {one['said']} | {one['against']}: "
            f"{one['against_said']}",
            "dim",
        )
    yield Text()


def _cells(row: Record) -> list[str]:
    scale = 100 if row["share"] else 1
    low, high = row["low"], row["high"]
    flips = "-" if row["gained"] is None else f"+{row['gained']:,} -{row['lost']:,}"
    detectable = "-" if row["detectable"] is None else f"{scale * max(row['detectable']):.2f}"
    return [
        row["task"],
        row["verdict"],
        difference(scale * row["difference"], 2),
        "-" if low is None else f"{difference(scale * low, 2)} to {difference(scale * high, 2)}",
        "-" if row["holm"] is None else f"{row['holm']:.2g}",
        flips,
        "> 100" if is_beyond(row) else detectable,
        f"{row['n']:,}",
        f"{scale * row['score']:.2f}",
        f"{scale * row['against_score']:.2f}",
    ]
