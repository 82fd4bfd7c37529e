"""Detects whether a run in another process is alive, by what it writes into its folder."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from layerlab.records.events import FILE as JOURNAL
from layerlab.records.parse import json_of
from layerlab.system.files import check_regular

# Bytes at the end of a journal in which its last update is looked for.
MOST = 1 << 22
# What a run says on its standard streams.
LOG = "log.txt"


class Heartbeat:
    """Watches whether a run still shows signs of life, and reads the end of its journal."""

    def __init__(self, folder: Path) -> None:
        self.files = [folder / JOURNAL, folder / LOG]
        self._seen: tuple[Any, ...] = ()
        self._size: int | None = None
        self._since = time.monotonic()

    def renew(self) -> None:
        """Restart the clock: a run that waits in a queue writes nothing."""
        self._since = time.monotonic()

    def silent(self) -> float:
        """Return for how many seconds nothing was written or touched."""
        seen = tuple(map(_stamp, self.files))
        if seen != self._seen:
            self._seen, self._since = seen, time.monotonic()
        return time.monotonic() - self._since

    def news(self) -> dict[str, Any] | None:
        """Return the last update, if the journal has changed in size since the last call."""
        stamp = _stamp(self.files[0])
        if stamp is None or stamp[1] == self._size:
            return None
        self._size = stamp[1]
        return last_update(self.files[0])


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def last_update(journal: Path) -> dict[str, Any] | None:
    """Return the last training event of a journal; None where its end has none."""
    for line in _backwards(journal):
        try:
            event = json_of(line)
        except ValueError:  # a line that is being written, or was cut off
            continue
        if isinstance(event, dict) and event.get("kind") == "train":
            return event
    return None


def _backwards(file: Path, step: int = 2**14) -> Iterator[bytes]:
    """Yield the last lines of a file backwards; a file that vanishes has no more.

    Raises:
        UserError: it is a pipe or a device.
    """
    check_regular(file)
    try:
        with file.open("rb") as stream:
            position = stream.seek(0, os.SEEK_END)
            first, rest = max(0, position - MOST), b""
            while position > first:
                start = max(first, position - step)
                stream.seek(start)
                rest = stream.read(position - start) + rest
                position = start
                rest, *lines = rest.split(b"\n")
                yield from reversed(lines)
            yield rest
    except OSError:
        return
