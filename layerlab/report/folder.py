"""A folder or a file written whole or not at all.

Everything goes into a hidden neighbour first and takes its final name by one rename. An earlier
report steps aside for that moment and comes back if the rename fails.
"""

import errno
import json
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from layerlab import UserError

PAGE, DATA, TABLES = "report.html", "report.json", "tables"
STUDY_PAGE, STUDY_DATA = "study.html", "study.json"
_TABLE_ENDINGS = {".csv", ".parquet"}
_REASONS = {
    errno.ENOSPC: "no space is left on the device",
    errno.EDQUOT: "the disk quota is used up",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EROFS: "the file system is read-only",
    errno.ENOTDIR: "a part of the path is a file",
    errno.EEXIST: "a part of the path is a file",
    errno.ENOTEMPTY: "something else was written there meanwhile",
    errno.ENAMETOOLONG: "the name is too long",
}


def write_folder(folder: Path, fill: Callable[[Path], None], what: str = "report") -> Path:
    """Write a folder; `fill` is handed an empty one to write into.

    Args:
        what: is written; only a report or a study takes the place of an earlier one.

    Raises:
        UserError: the folder cannot be written, or holds something that must not be lost.
    """
    with _explained(folder):
        target = folder.resolve()
        _refuse_others(target, folder, what)
        with _parents(target), _neighbour(target) as partial:
            partial.mkdir()
            fill(partial)
            _swap(partial, target)
    return target


def check_folder(folder: Path, what: str = "report") -> None:
    """Raise at once what `write_folder` would raise when the work is done.

    Raises:
        UserError: the folder cannot be written, or holds something that must not be lost.
    """
    with _explained(folder):
        target = folder.resolve()
        _refuse_others(target, folder, what)
        nearest = next(parent for parent in target.parents if parent.exists())
        with _neighbour(nearest / target.name) as partial:
            partial.mkdir()


def write_file(path: Path, text: str) -> Path:
    """Write one file.

    Raises:
        UserError: it cannot be written, or a folder has that name.
    """
    with _explained(path):
        target = path.resolve()
        if target.is_dir():
            raise UserError(f"cannot write {path}: it is a folder; give a file name")
        with _parents(target), _neighbour(target) as partial:
            partial.write_text(text, encoding="utf-8")
            partial.replace(target)
    return target


def _refuse_others(target: Path, given: Path, what: str) -> None:
    if not target.exists():
        return
    if not target.is_dir():
        raise UserError(f"cannot write a {what} to {given}: it is a file; name a folder")
    if target == Path.cwd() or target in Path.cwd().parents or target.is_mount():
        raise UserError(
            f"cannot put a {what} in place of {given}, which is in use; "
            f"name a folder inside it, such as {given / what}"
        )
    replaced = what in _OWN and _OWN[what](target)
    if any(target.iterdir()) and not replaced:
        held = f"something other than a {what}" if what in _OWN else "files already"
        raise UserError(f"{given} holds {held}; name a new or an empty folder")


def is_report(folder: Path) -> bool:
    """Whether a folder holds a report and nothing else: no file but what a report writes."""
    names = {entry.name for entry in folder.iterdir()}
    if DATA not in names or not names <= {PAGE, DATA, TABLES}:
        return False
    try:
        content = json.loads((folder / DATA).read_text(encoding="utf-8"))
        measures = {measure["name"] for measure in content["measures"]}
        known = {*content["frames"], *measures} if content["schema"] else measures
    except (OSError, ValueError, KeyError, TypeError):
        return False
    tables = folder / TABLES
    kept = list(tables.iterdir()) if tables.is_dir() else []
    return all(
        entry.suffix in _TABLE_ENDINGS and entry.stem in known and entry.is_file() for entry in kept
    )


def is_study(folder: Path) -> bool:
    """Whether a folder holds a study and nothing else: no file but what a study writes."""
    entries = {entry.name: entry for entry in folder.iterdir()}
    own = {STUDY_PAGE, STUDY_DATA, TABLES}
    try:
        content = json.loads((folder / STUDY_DATA).read_text(encoding="utf-8"))
        own |= {f"{picture['name']}.png" for picture in content["pictures"]}
        known = {f"{name}.csv" for name in content["frames"]}
    except (OSError, ValueError, KeyError, TypeError):
        return False
    tables = entries.get(TABLES)
    kept = {entry.name for entry in tables.iterdir()} if tables and tables.is_dir() else set()
    return set(entries) <= own and kept <= known


# What may be written anew in place of what was written before.
_OWN: dict[str, Callable[[Path], bool]] = {"report": is_report, "study": is_study}


def _swap(partial: Path, target: Path) -> None:
    if not target.exists():
        partial.rename(target)
        return
    aside = _hidden(target)
    target.rename(aside)
    try:
        partial.rename(target)
    except BaseException:
        aside.rename(target)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _hidden(target: Path) -> Path:
    return target.with_name(f".{target.name[:80]}.{uuid.uuid4().hex[:8]}.partial")


@contextmanager
def _neighbour(target: Path) -> Iterator[Path]:
    """A name beside `target`, of which nothing is left in the end."""
    partial = _hidden(target)
    try:
        yield partial
    finally:
        if partial.is_dir():
            shutil.rmtree(partial, ignore_errors=True)
        else:
            partial.unlink(missing_ok=True)


@contextmanager
def _parents(target: Path) -> Iterator[None]:
    """The folders above `target`; those that were made here go again if the writing fails."""
    made = [parent for parent in target.parents if not parent.exists()]
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for parent in made:
            try:
                parent.rmdir()
            except OSError:
                break
        raise


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """An error of the file system as one line that says what to do."""
    try:
        yield
    except OSError as error:
        reason = _REASONS.get(error.errno or 0, error.strerror or str(error))
        raise UserError(f"cannot write {path}: {reason}; name another place") from error
    except ValueError as error:
        if "null" not in str(error):
            raise
        raise UserError(f"cannot write {str(path)!r}: a name cannot hold a null byte") from error
