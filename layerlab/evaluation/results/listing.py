"""Listing of every benchmark: whether its data is here, its licence, how to get it."""

from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from layerlab.console.tables import plain
from layerlab.errors import UserError
from layerlab.evaluation.benchmarks.catalog import BENCHMARKS
from layerlab.evaluation.benchmarks.files import is_here
from layerlab.evaluation.benchmarks.spec import Benchmark
from layerlab.evaluation.results.table import Column, Record, grid
from layerlab.system.files import File

# Characters from which on the list is one table.
WHOLE = 80


def list_benchmarks(data: File | None = None) -> list[dict[str, Any]]:
    """List every benchmark, a row each.

    Args:
        data: folder of benchmark files; LAYERLAB_DATA where none is given.
    """
    folder = None if data is None else Path(data)
    return [
        {
            "benchmark": one.name,
            "title": one.title,
            "group": one.group,
            "subjects": len(one.subjects),
            "split": one.split,
            "examples": one.shots,
            "scorings": list(one.scorings),
            **_find(one, folder),
            "licence": one.licence,
            "source": one.source,
            "hub": one.hub,
            "folder": one.folder,
        }
        for one in BENCHMARKS.values()
    ]


def _find(one: Benchmark, folder: Path | None) -> dict[str, Any]:
    """Find whether a benchmark is here; one that cannot be read hides no other."""
    try:
        return {"here": is_here(one, folder), "fault": None}
    except UserError as error:
        return {"here": False, "fault": str(error)}


def _place(row: Record) -> str:
    return str(row["fault"] or ("here" if row["here"] else f"put it in {row['folder']}/"))


_COLUMNS: tuple[Column, ...] = (
    ("benchmark", lambda row: str(row["benchmark"])),
    ("group", lambda row: str(row["group"])),
    ("subjects", lambda row: str(row["subjects"])),
    ("data", _place),
    ("licence", lambda row: str(row["licence"])),
)


def render_listing(rows: list[dict[str, Any]], width: int = WHOLE) -> RenderableType:
    """Render the rows for a terminal, in several tables where it is narrow.

    Each web address has a line of its own below, whole at any width, so that it can be copied.
    """
    wrapped = tuple(name for name, _ in _COLUMNS if name != "subjects")
    table = grid(rows, _COLUMNS, wrapped, None if width >= WHOLE else width)
    addresses = [plain(f"{row['benchmark']}: {row['source']}") for row in rows]
    return Group(table, Text(), plain("Where to get the data", "bold"), *addresses)
