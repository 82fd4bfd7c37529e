"""The time that went into the batches of a study, over all the sittings that computed them."""

import json
import time
from pathlib import Path

from layerlab.system import files


class Clock:
    """Counts from now on, and from what earlier sittings left in a file.

    Each time it is kept, the file says what has been spent so far: whatever ends a sitting, the
    next one counts on from the last batch that it finished.
    """

    def __init__(self, file: Path | None = None) -> None:
        """Begin to count; with no file this sitting is the only one."""
        self._file = file
        self._wall, self._processor = _read(file)
        self._start = time.perf_counter(), time.process_time()

    def spent(self) -> dict[str, float]:
        """Return the seconds of all sittings."""
        start, processor = self._start
        return {
            "wall seconds": round(self._wall + time.perf_counter() - start, 1),
            "processor seconds": round(self._processor + time.process_time() - processor, 1),
        }

    def keep(self) -> None:
        """Save what has been spent for the next sitting."""
        if self._file is not None:
            files.write_file(self._file, json.dumps(self.spent()))


def _read(file: Path | None) -> tuple[float, float]:
    """Read what earlier sittings left; a file that cannot be read counts as none."""
    try:
        found = json.loads(file.read_text("utf-8")) if file is not None else {}
        return float(found.get("wall seconds", 0)), float(found.get("processor seconds", 0))
    except (OSError, ValueError, TypeError, AttributeError):
        return 0.0, 0.0
