"""Finds what layerlab wrote in a folder and below, without following links."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from json import JSONDecodeError
from pathlib import Path

from pydantic import ValidationError

from layerlab.errors import UserError
from layerlab.records.index import (
    adaptation,
    campaign,
    comparison,
    evaluation,
    inspection,
    run,
    study,
)
from layerlab.records.index.entry import DAMAGED, Entry, Kind, Summary, moment, one_line
from layerlab.records.parse import explain
from layerlab.validation import short_repr

KINDS = (
    *(run.KIND, comparison.KIND, adaptation.KIND, evaluation.KIND, inspection.KIND, study.KIND),
    campaign.KIND,
)
DEPTH = 8  # folders below the first
MOST = 20_000  # folders that are looked into
# A file that keeps its folder out of the list of another one.
UNLISTED = ".layerlab-unlisted"
# Folders of an entry that hold no other entry of their own.
PARTS = frozenset(
    {"tables", "figures", "pictures", "samples", "leaves", "model", "checkpoints", "stages"}
)


@dataclass
class _Search:
    """A search under way, and what it has found.

    Attributes:
        root: the folder that is searched.
        remarks: on what was not looked into.
    """

    root: Path
    entries: list[Entry] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def find_entries(root: Path) -> tuple[list[Entry], list[str]]:
    """Find all entries in a folder and below, newest first, and remarks on what was passed over.

    Raises:
        UserError: there is no such folder.
    """
    if not _is_folder(root):
        raise UserError(
            f"no folder at {short_repr(str(root))}; expected one that layerlab wrote into: "
            "type for example layerlab runs layerlab-runs"
        )
    search = _Search(root)
    waiting, count = [(root, 0)], 0
    while waiting:
        if count == MOST:
            search.remarks.append(f"only the first {MOST:,} folders were looked into; name one")
            break
        folder, depth = waiting.pop(0)
        count += 1
        inner = list(_visit(search, folder))
        if depth < DEPTH:
            waiting += [(one, depth + 1) for one in inner]
        elif inner:
            search.remarks.append(
                f"{folder.relative_to(root).as_posix()} is {DEPTH} folders deep; what lies "
                "below was not looked into: name it"
            )
    search.entries.sort(key=lambda one: (-one.changed.timestamp(), one.folder, one.kind))
    return search.entries, search.remarks


def _is_folder(root: Path) -> bool:
    try:
        return root.is_dir()
    except (OSError, ValueError):  # a name that is too long, or that nobody may look at
        return False


def _visit(search: _Search, folder: Path) -> Iterator[Path]:
    """Note the entries of a folder, and yield the folders in it that may hold more."""
    try:
        with os.scandir(folder) as found:
            inside = sorted(found, key=lambda one: one.name)
    except OSError as error:
        place = folder.relative_to(search.root).as_posix()
        search.remarks.append(f"{place} was not looked into: {error.strerror or error}")
        return
    names = frozenset(one.name for one in inside)
    if UNLISTED in names and folder != search.root:
        place = folder.relative_to(search.root).as_posix()
        search.remarks.append(f"{place} was left out, as its file {UNLISTED} asks; name it")
        return
    links = frozenset(one.name for one in inside if one.is_symlink())
    kinds = [kind for kind in KINDS if kind.matches(names)]
    search.entries += [_entry(search.root, folder, kind, links) for kind in kinds]
    for one in inside:
        part = kinds and (one.name in PARTS or one.name.startswith("checkpoint-"))
        if one.is_dir(follow_symlinks=False) and not one.name.startswith(".") and not part:
            yield folder / one.name


def _entry(root: Path, folder: Path, kind: Kind, links: frozenset[str]) -> Entry:
    """Read an entry; what cannot be read is damaged, with the reason."""
    summary = _summary(folder, kind, links)
    page = folder / kind.page
    has_page = page.is_file() and kind.page not in links
    return Entry(
        kind=kind.name,
        name=one_line(summary.name),
        state=summary.state,
        headline=one_line(summary.headline),
        folder=folder.relative_to(root).as_posix(),
        page=page.relative_to(root).as_posix() if has_page else None,
        changed=moment(_change_time(folder, kind)),
    )


def _summary(folder: Path, kind: Kind, links: frozenset[str]) -> Summary:
    name = folder.resolve().name
    linked = [file for file in kind.files if file in links]
    if linked:
        return Summary(name, DAMAGED, f"{linked[0]} is a link, which is not followed")
    try:
        return kind.read(folder)
    except ValidationError as error:
        why = explain(error)
    except OSError as error:
        why = f"{Path(str(error.filename or folder)).name}: {error.strerror or error}"
    except JSONDecodeError as error:
        why = f"it is not JSON: {error}"
    except (UserError, ValueError) as error:
        why = str(error)
    return Summary(name, DAMAGED, why)


def _change_time(folder: Path, kind: Kind) -> float:
    for file in kind.files:
        try:
            return (folder / file).lstat().st_mtime
        except OSError:
            continue
    return 0.0
