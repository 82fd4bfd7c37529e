"""Readings that lie among the runs: the shapes of their numbers, and one file that holds all."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from layerlab.errors import UserError
from layerlab.records.file_digests import hash_file
from layerlab.records.kept import read_kept, write_kept
from layerlab.system.files import write_folder

# Of the folder among the runs; they are of models that studies train, small twins of large ones.
FOLDER = "twins"
# By name; None stands for any length.
Shapes = Mapping[str, tuple[int | None, ...]]


def check_shapes(found: Mapping[str, Any], shapes: Shapes) -> None:
    """Check that all these numbers are there.

    Raises:
        ValueError, TypeError, KeyError: one is missing, is no number, or has another shape.

    Example:
        >>> check_shapes({"nats": 2.0, "layers": [[1, 2]]}, {"nats": (), "layers": (None, 2)})
        >>> check_shapes({"nats": [2.0]}, {"nats": ()})
        Traceback (most recent call last):
        ValueError: its nats has the shape (1,)
    """
    for name, expected in shapes.items():
        shape = np.asarray(found[name], dtype=float).shape
        if len(shape) != len(expected) or any(
            asked not in (None, size) for asked, size in zip(expected, shape, strict=True)
        ):
            raise ValueError(f"its {name} has the shape {shape}")


def hash_readings(runs: Path, pattern: str = "*.json") -> list[str]:
    """Return the SHA-256 of all readings that lie among the runs, in the order of their names.

    Raises:
        UserError: one is a pipe or a device, or they were folded and cannot be unpacked.
    """
    found = sorted(find_readings(runs).glob(pattern))
    return [hash_file(file) for file in found if not file.is_dir()]


def find_readings(runs: Path) -> Path:
    """Return the folder of the readings among the runs, unpacked where they were folded.

    Raises:
        UserError: they cannot be unpacked.
    """
    folder = runs / FOLDER
    if folder.exists() or not (found := read_kept(folder.with_suffix(".json"))):
        return folder

    def fill(made: Path) -> None:
        for name, text in found.items():
            (made / Path(name).name).write_text(str(text), encoding="utf-8")

    try:
        write_folder(folder, fill, "readings")
    except UserError:
        if not folder.exists():  # else another process was quicker
            raise
    return folder


def fold_readings(runs: Path) -> None:
    """Write the readings among the runs into one file beside their folder, and leave the folder.

    Raises:
        UserError: the file holds readings that the folder lacks, or cannot be written.
    """
    folder = find_readings(runs)
    found = {file.name: file.read_text("utf-8") for file in sorted(folder.glob("*.json"))}
    target = folder.with_suffix(".json")
    if lost := sorted(set(read_kept(target) or ()) - set(found)):
        raise UserError(
            f"{target} holds {len(lost)} readings that are not in {folder}, the first {lost[0]}, "
            f"and would lose them; move {folder} away to have it unpacked from the file"
        )
    write_kept(target, found)
