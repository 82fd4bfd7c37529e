"""The time that went into the batches of a study, over all the sessions that computed them."""

import math
import time
from pathlib import Path
from typing import Any

from layerlab.records.kept import read_kept, write_kept

PARTS = ("wall seconds", "processor seconds")


class Clock:
    """Counts from now on, and from what earlier sessions left in a file.

    Each time it is kept, the file says what has been spent so far: whatever ends a session, the
    next one counts on from the last batch that it finished.
    """

    def __init__(self, file: Path | None = None) -> None:
        """Begin to count; with no file this session is the only one."""
        self._file = file
        self._wall, self._processor = _read(file)
        self._start = time.perf_counter(), time.process_time()

    def seconds_spent(self) -> dict[str, float]:
        """Return the seconds of all sessions."""
        start, processor = self._start
        return {
            "wall seconds": round(self._wall + time.perf_counter() - start, 1),
            "processor seconds": round(self._processor + time.process_time() - processor, 1),
        }

    def keep(self) -> None:
        """Save what has been spent for the next session."""
        if self._file is not None:
            write_kept(self._file, self.seconds_spent())


def _read(file: Path | None) -> tuple[float, float]:
    """Read what earlier sessions left; a file that cannot be read counts as none."""
    found = None if file is None else read_kept(file, _check)
    if found is None:
        return 0.0, 0.0
    wall, processor = (float(found[name]) for name in PARTS)
    return wall, processor


def _check(found: dict[str, Any]) -> None:
    if any(not 0 <= float(found[name]) < math.inf for name in PARTS):
        raise ValueError("it tells of no time")
