"""Activity in a folder: running or interrupted."""

import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from layerlab.records.index.entry import INTERRUPTED, RUNNING
from layerlab.system.locks import is_locked

# Seconds: where the file system knows no locks, whoever wrote this lately is taken to go on.
FRESH = 120


def state_of_unfinished(folder: Path, files: Iterable[Path]) -> str:
    """Return "running" where a process holds the folder, else "interrupted".

    Args:
        folder: that is locked while it is written.
        files: that grow meanwhile, asked only where there are no locks.
    """
    locked = is_locked(folder)
    if locked is None:
        locked = any(time.time() - _change_time(file) < FRESH for file in files)
    return RUNNING if locked else INTERRUPTED


def _change_time(file: Path) -> float:
    with suppress(OSError):
        return file.stat().st_mtime
    return 0.0
