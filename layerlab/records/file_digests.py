"""Digests of all files of a folder, so that what was written is known again when it is read.

Whoever can write the table too can forge it: see docs/security.md.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from layerlab.records.parse import read_json, seal, unseal
from layerlab.system.files import check_regular, write_file

FILE = "files.json"
PASSING = (".lock", ".partial")  # a kill leaves them, and whoever comes next may remove them


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file.

    Raises:
        UserError: it is a pipe or a device.
    """
    check_regular(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_if_there(path: Path) -> str | None:
    """Return the SHA-256 of a file, or None where there is none."""
    return hash_file(path) if path.is_file() else None


def hash_sources(folder: Path, patterns: Iterable[str]) -> str:
    """Return one hash of the files of a folder that match patterns, as of code."""
    digest = hashlib.blake2b(digest_size=12)
    for path in sorted(one for pattern in patterns for one in folder.glob(pattern)):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()} {len(content)} ".encode())
        digest.update(content)
    return digest.hexdigest()


def hash_folder(folder: Path, *, leave: Sequence[str] = ()) -> dict[str, str]:
    """Return the SHA-256 of every file below a folder, by its path in there.

    Args:
        leave: patterns of folders and files right in it that do not count; hidden ones never do,
            nor what a killed process left of its locks and half-written files, wherever it lies.
    """
    return {name: hash_file(folder / name) for name in _names(folder, leave)}


def _names(folder: Path, leave: Sequence[str]) -> list[str]:
    found = []
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        first = Path(inside.parts[0])
        left = first.name.startswith(".") or any(map(first.match, leave))
        passing = any(one.startswith(".") and one.endswith(PASSING) for one in inside.parts)
        if not left and not passing and not path.is_dir():
            found.append(inside.as_posix())
    return found


def check_hashes(folder: Path, hashes: Mapping[str, str]) -> None:
    """Compare the files of a folder with their SHA-256.

    Raises:
        ValueError: names the first file that is missing or is another.
        UserError: one is a pipe or a device.
    """
    for name, expected in hashes.items():
        path = folder / name
        if not path.exists():
            raise ValueError(f"{name} is missing")
        if hash_file(path) != expected:
            raise ValueError(f"{name} is not what was written")


def seal_folder(folder: Path, **beside: str) -> None:
    """Write the table of a folder's files into it.

    Args:
        beside: what else the table says.
    """
    table = seal({**beside, "files": hash_folder(folder, leave=[FILE])})
    write_file(folder / FILE, json.dumps(table, indent=1) + "\n")


def check_seal(folder: Path) -> Mapping[str, Any]:
    """Check that a folder holds the files of its table, and no others; return the table.

    Raises:
        ValueError: says which file is another, missing, or too many.
        UserError: one is a pipe or a device.
        OSError: there is no table.
    """
    table = _read_table(folder)
    check_hashes(folder, table["files"])
    if more := extra_files(folder):
        raise ValueError(f"{more[0]} was not there when it was written")
    return table


def extra_files(folder: Path) -> list[str]:
    """Return the files of a folder that its table does not name.

    Raises:
        ValueError: the table is not what was written.
        UserError: it is a pipe or a device.
        OSError: there is no table.
    """
    named = _read_table(folder)["files"]
    return [name for name in _names(folder, [FILE]) if name not in named]


def _read_table(folder: Path) -> Mapping[str, Any]:
    table = unseal(read_json(folder / FILE))
    if not isinstance(table.get("files"), dict):
        raise ValueError(f"{FILE} names no files")
    return table
