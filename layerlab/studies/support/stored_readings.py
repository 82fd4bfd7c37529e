"""Readings that lie among the runs: whether their numbers have the shapes that were asked for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from layerlab.records.file_digests import hash_file

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


def hash_readings(folder: Path, pattern: str = "*.json") -> list[str]:
    """Return the SHA-256 of all readings in a folder, in the order of their names.

    Raises:
        UserError: one is a pipe or a device.
    """
    return [hash_file(file) for file in sorted(folder.glob(pattern)) if not file.is_dir()]
