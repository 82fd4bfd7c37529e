"""Folder of a report or a study, and checks of what may take the place of an earlier one."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from layerlab.errors import UserError
from layerlab.records.parse import read_json
from layerlab.report.figures.export import FigureKind
from layerlab.system import files
from layerlab.system.own_page import is_own_page

PAGE, DATA, TABLES, FIGURES = "report.html", "report.json", "tables", "figures"
STUDY_PAGE, STUDY_DATA = "study.html", "study.json"
# What is left of a study that broke off: the traceback, below a line that tells it from others.
ACCIDENT, ACCIDENT_HEAD = "error.txt", "layerlab: this study broke off.\n"
_TABLE_ENDINGS = {".csv", ".parquet"}
_FIGURE_ENDINGS = {f".{kind}" for kind in FigureKind}


def is_report(folder: Path) -> bool:
    """Return whether a folder holds a report and nothing else."""
    names = {entry.name for entry in folder.iterdir()}
    if DATA not in names or not names <= {PAGE, DATA, TABLES, FIGURES}:
        return False
    if PAGE in names and not is_own_page(folder / PAGE):
        return False
    try:
        content = read_json(folder / DATA)
        measures = {measure["name"] for measure in content["measures"]}
        known = {*content["frames"], *measures} if content["schema"] else measures
    except (OSError, ValueError, KeyError, TypeError):
        return False
    tables = folder / TABLES
    kept = list(tables.iterdir()) if tables.is_dir() else []
    return _own_figures(folder / FIGURES, content) and all(
        entry.suffix in _TABLE_ENDINGS and entry.stem in known and entry.is_file() for entry in kept
    )


def _own_figures(folder: Path, content: Mapping[str, Any]) -> bool:
    """Return whether a folder, if it exists, holds figures of this report and nothing else."""
    if not folder.is_dir():
        return not folder.exists()
    from layerlab.report.figures.inspection import figures
    from layerlab.report.results.schema import check_schema

    try:
        figure_names = figures({**check_schema(content), "frames": content["frames"]})
    except (UserError, ValueError, TypeError, AttributeError, LookupError):
        return False
    return all(
        entry.suffix in _FIGURE_ENDINGS and entry.stem in figure_names and entry.is_file()
        for entry in folder.iterdir()
    )


def is_study(folder: Path) -> bool:
    """Return whether a folder holds a study and nothing else."""
    entries = {entry.name: entry for entry in folder.iterdir()}
    if ACCIDENT in entries and not _is_accident(entries.pop(ACCIDENT)):
        return False
    if not entries:
        return True
    if STUDY_PAGE in entries and not is_own_page(entries[STUDY_PAGE]):
        return False
    own = {STUDY_PAGE, STUDY_DATA, TABLES}
    try:
        content = read_json(folder / STUDY_DATA)
        names = [picture["name"] for picture in content["pictures"]]
        own |= {f"{name}{ending}" for name in names for ending in _FIGURE_ENDINGS}
        known = {f"{name}.csv" for name in content["frames"]}
    except (OSError, ValueError, KeyError, TypeError):
        return False
    tables = entries.get(TABLES)
    kept = {entry.name for entry in tables.iterdir()} if tables and tables.is_dir() else set()
    return set(entries) <= own and kept <= known


def _is_accident(file: Path) -> bool:
    """Return whether a file is the traceback of a study."""
    if not file.is_file():
        return False
    try:
        with file.open(encoding="utf-8") as text:
            return text.readline(len(ACCIDENT_HEAD)) == ACCIDENT_HEAD
    except (OSError, ValueError):
        return False


# What may be written anew in place of what was written before.
_OWN: Mapping[str, files.Like] = {"report": is_report, "study": is_study}


def write_folder(
    folder: Path,
    fill: Callable[[Path], None],
    what: str = "report",
    before: files.Standing | None = None,
) -> Path:
    """Write a report or a study; only another of its kind may be there before.

    Args:
        before: as `files.write_folder` takes it.

    Raises:
        UserError: the folder cannot be written, or holds something that must not be lost.
    """
    return files.write_folder(folder, fill, what, _OWN[what], before)


def check_folder(folder: Path, what: str = "report") -> files.Standing:
    """Raise at once what `write_folder` would raise when the work is done.

    Returns:
        What stands there now.

    Raises:
        UserError: the folder cannot be written, or holds something that must not be lost.
    """
    return files.check_folder(folder, what, _OWN[what])
