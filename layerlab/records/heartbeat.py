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
        self._update, self._notes = 0, set[tuple[int, str]]()
        self.news()  # notes of earlier attempts are none
        self._size = None

    def renew(self) -> None:
        """Restart the clock: a run that waits in a queue writes nothing."""
        self._since = time.monotonic()

    def silent(self) -> float:
        """Return for how many seconds nothing was written or touched."""
        seen = tuple(map(_stamp, self.files))
        if seen != self._seen:
            self._seen, self._since = seen, time.monotonic()
        return time.monotonic() - self._since

    def news(self) -> list[dict[str, Any]]:
        """Return notes and then the last update, if the journal has changed in size since.

        A note of update 0 is one about the texts, told by whoever planned the run. Where a run
        resumes, its journal is cut to the checkpoint: then all of its end is read again.
        """
        stamp = _stamp(self.files[0])
        if stamp is None or stamp[1] == self._size:
            return []
        self._size = stamp[1]
        last, notes, known = list[dict[str, Any]](), list[dict[str, Any]](), 0
        for event in _events(self.files[0]):
            update, text = event["update"], event.get("text")
            if event.get("kind") == "train":
                if not last:
                    last, known = [event], self._update if update >= self._update else 0
                if update <= known:
                    break
            elif event.get("kind") == "note" and update and (update, text) not in self._notes:
                self._notes.add((update, str(text)))
                notes.append(event)
        self._update = last[0]["update"] if last else 0
        return [*reversed(notes), *last]


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def last_update(journal: Path) -> dict[str, Any] | None:
    """Return the last training event of a journal; None where its end has none."""
    return next((event for event in _events(journal) if event.get("kind") == "train"), None)


def _events(journal: Path) -> Iterator[dict[str, Any]]:
    """Yield the events at the end of a journal backwards."""
    for line in _backwards(journal):
        try:
            event = json_of(line)
        except ValueError:  # a line that is being written, or was cut off
            continue
        if isinstance(event, dict) and isinstance(event.get("update"), int):
            yield event


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
