"""Check of the folder of a comparison: nothing but one of its kind is replaced."""

import shlex
from pathlib import Path

from layerlab.errors import UserError
from layerlab.records.parse import find_table, read_json
from layerlab.records.run_files import BESIDE, COMPARISON
from layerlab.system.own_page import check_own_links, is_own_page, mark_of

# Parts of every comparison, of any version.
_PARTS: dict[str, type] = {"runs": list, "rows": list, "arms": list, "baseline": str}


def check_page_folder(folder: Path, *, logs: bool = False) -> None:
    """Refuse a folder whose page is not that of an earlier comparison of the same kind.

    Args:
        logs: whether logs are judged, and not the runs of a recipe.

    Raises:
        UserError: it holds something that a comparison would replace and has not written.
    """
    page = folder / BESIDE[0]
    if page.exists() and not is_own_page(page, mark_of("compare")):
        foreign: str | None = page.name
    elif (folder / COMPARISON).exists():
        foreign = None if _is_comparison(folder / COMPARISON) else COMPARISON
    else:
        foreign = next((name for name in BESIDE if (folder / name).exists()), None)
    if foreign is not None:
        raise UserError(
            f"{folder} holds something other than a comparison: {foreign}; move it away, or name "
            "another folder with --out"
        )
    check_own_links(folder, (COMPARISON, *BESIDE))
    if (folder / COMPARISON).exists() and logs is not _is_of_logs(folder / COMPARISON):
        held, other = ("runs of a recipe", "judged") if logs else ("logs, by judge", "compared")
        raise UserError(
            f"{folder} holds a comparison of {held}, which would be replaced; move it away, or "
            f"name another folder, as in --out {shlex.quote(str(folder / other))}"
        )


def _is_of_logs(file: Path) -> bool:
    """Return whether a comparison is of logs: it has a command, and no recipe to judge again by."""
    found = read_json(file)
    return "command" in found and "recipe" not in found


def _is_comparison(file: Path) -> bool:
    found = find_table(file)
    return all(isinstance(found.get(name), kind) for name, kind in _PARTS.items())
