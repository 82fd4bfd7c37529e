"""Find the folder of a comparison's page: other arms on the same runs have one of their own."""

import hashlib
from pathlib import Path

from layerlab.errors import UserError
from layerlab.experiments.plan.plan import arms
from layerlab.experiments.session import Task
from layerlab.records.parse import read_json
from layerlab.records.run_files import COMPARISON

OTHERS = "comparisons"
LONGEST = 60  # characters of a folder's name
# What lies beside comparison.json, and is written after it.
BESIDE = ("report.html", "tables", "pictures")
# Parts of every comparison, of any version.
_PARTS: dict[str, type] = {"runs": list, "rows": list, "arms": list, "baseline": str}


def page_folder(task: Task) -> Path:
    """Return the folder of a task's page: the recipe's, unless that compares other arms."""
    own, there = _arms(task), compared_in(task.out)
    if there is None or (there[0], set(there)) == (own[0], set(own)):
        return task.out
    name = "-".join(own)
    if len(name) > LONGEST:
        digest = hashlib.blake2b(name.encode(), digest_size=4).hexdigest()
        name = f"{name[: LONGEST - len(digest) - 1]}-{digest}"
    return task.out / OTHERS / name


def check_page_folder(folder: Path) -> None:
    """Refuse a folder whose page is not that of an earlier comparison.

    Raises:
        UserError: it holds something that a comparison would replace and has not written.
    """
    if (folder / COMPARISON).exists():
        foreign = None if _is_comparison(folder / COMPARISON) else COMPARISON
    else:
        foreign = next((name for name in BESIDE if (folder / name).exists()), None)
    if foreign is not None:
        raise UserError(
            f"{folder} holds something other than a comparison: {foreign}; move it away, or name "
            "another folder with --out"
        )


def _is_comparison(file: Path) -> bool:
    try:
        found = read_json(file)
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and all(
        isinstance(found.get(name), kind) for name, kind in _PARTS.items()
    )


def compared_in(folder: Path) -> list[str] | None:
    """Return the arms of the comparison in a folder, its baseline first; None if there is none."""
    try:
        found = read_json(folder / COMPARISON)
        return _first(str(found["baseline"]), [str(name) for name in found["arms"]])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def pages_in(folder: Path) -> list[Path]:
    """Return every comparison.json of a recipe's runs, that of the recipe's folder first."""
    return [folder / COMPARISON, *sorted((folder / OTHERS).glob(f"*/{COMPARISON}"))]


def _arms(task: Task) -> list[str]:
    section = task.recipe.compare
    if section is None:
        return [task.recipe.model.variant]
    names = [str(arm.name) for arm in arms(section, task.recipe)]
    return _first(section.baseline or names[0], names)


def _first(baseline: str, names: list[str]) -> list[str]:
    return [baseline, *(name for name in names if name != baseline)]
