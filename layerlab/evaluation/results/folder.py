"""Files that an evaluation leaves, and folders that it may write into."""

import re
from pathlib import Path
from typing import Any

from layerlab.errors import UserError
from layerlab.evaluation.harness.cache import LEAVES, SAMPLES
from layerlab.records.parse import read_json, unseal
from layerlab.system.files import check_links
from layerlab.system.own_page import is_own_page, mark_of
from layerlab.system.write_errors import check_out

RESULTS, TABLES, PAGE = "results.json", "tables", "report.html"
KINDS = (
    *("benchmarks", "subjects", "groups", "sections", "tasks", "task_groups", "precision"),
    *("compared", "published"),
)
# Of every results.json.
PARTS = {"benchmarks", "subjects", "arms"}
# What a task that is kept is called, and what is left of a file whose writing was cut off.
_KEPT = re.compile(r".+-[0-9a-f]{24}\.jsonl?")
_CUT_OFF = re.compile(r"\..+\.[0-9a-f]{8}\.partial")


def check_folders(data: Path | None, out: Path | None) -> None:
    """Refuse folders of data and results that cannot be those, before anything is evaluated.

    Raises:
        UserError: there is no such folder of data, a file where results would lie, or a link there.
    """
    if data is not None and not data.is_dir():
        raise UserError(
            f"there is no folder {str(data)!r}; give --data the one that benchmarks lie in"
        )
    if out is not None:
        check_out(out)
        check_links(out)


def list_earlier_tables(folder: Path) -> list[str]:
    """Return the kinds of tables that an earlier evaluation wrote into a folder.

    Whatever else lies beside a finished evaluation is left alone. Where there is no results.json,
    only answers may be there, which an interrupted evaluation has kept.

    Raises:
        UserError: there is something that an evaluation would replace and has not written.
    """
    try:
        names = {entry.name for entry in folder.iterdir()} if folder.exists() else set()
        if RESULTS not in names:
            foreign = next((one for one in sorted(names) if not _is_kept(folder / one)), None)
            tables = []
        else:
            content = _read(folder / RESULTS)
            tables = [kind for kind in KINDS if content and content.get(kind)]
            foreign = RESULTS if content is None else _foreign(folder, tables)
    except OSError as error:
        raise UserError(
            f"cannot read {folder}: {error.strerror}; name a new or an empty folder"
        ) from None
    if foreign is not None:
        raise UserError(
            f"{folder} holds something other than an evaluation: {foreign}; name a new or an "
            "empty folder"
        )
    return tables


def _is_kept(path: Path) -> bool:
    """Return whether something is what an evaluation leaves that was cut off."""
    if _CUT_OFF.fullmatch(path.name):
        return True
    return (
        path.name in (LEAVES, SAMPLES)
        and path.is_dir()
        and all(_KEPT.fullmatch(one.name) or _CUT_OFF.fullmatch(one.name) for one in path.iterdir())
    )


def _read(file: Path) -> dict[str, Any] | None:
    """Read the results of an evaluation; None where they are not what one wrote."""
    try:
        content = unseal(read_json(file))
    except (ValueError, UserError):
        return None
    return content if set(content) >= PARTS else None


def _foreign(folder: Path, own: list[str]) -> str | None:
    """Return a file with the name of a table, or of the page, that no evaluation wrote."""
    if (folder / PAGE).exists() and not is_own_page(folder / PAGE, mark_of("evaluate")):
        return PAGE
    others = (f"{TABLES}/{kind}.csv" for kind in KINDS if kind not in own)
    return next((name for name in others if (folder / name).exists()), None)
