"""The journal of a run: one JSON event a line, which reports read and resumed runs continue."""

import hashlib
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from layerlab.errors import UserError
from layerlab.records.checkpoint_names import CHECKPOINTS, remedy
from layerlab.records.layer_names import EMBEDDING, layer_name
from layerlab.records.parse import json_of
from layerlab.system.files import check_regular, force_to_disk, unshare
from layerlab.system.write_errors import FULL, reason_of

FILE = "events.jsonl"
LONGEST = 64 << 20  # bytes of a line: a reading of all heads of the largest models has less
BEAT = 1.0  # seconds between two signs of life
# Of a monitor's readings in a journal of layerlab 0.1.
_OLDER = "rows"
_SHIFTED = ("relative_residual", "stream_norm", "growth", "gradient")
_NAMED = re.compile(r"\blayer \d+")


class EventLog:
    """Appends events to a run's journal; those before a checkpoint survive a crash.

    While the disk is full, events wait in memory, and each further one tries to write them all; the
    next checkpoint asks for them.

    Attributes:
        count: events so far, which a checkpoint remembers.
    """

    def __init__(self, folder: Path, count: int, *, silent: bool = False) -> None:
        """Open a journal at a checkpoint: later events are dropped, for they will happen again.

        Args:
            count: events before it. Their updates do not tell: the next update's own first events,
                and those before the first checkpoint, have the checkpoint's number too.
            silent: writes nothing, as all processes of a run but the first.
        """
        self.file = folder / FILE
        self.silent = silent
        self.count = count
        self._hash = hashlib.sha256()
        self._waiting: list[str] = []
        self._end = 0
        self._beaten = 0.0
        if not silent:
            try:
                self._cut()
            except OSError as error:
                raise self._explain(error) from error

    def _cut(self) -> None:
        """Drop later events, in place: at no moment are the earlier ones not on the disk."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.touch()
        unshare(self.file)  # a copy by hard links is not to change with it
        kept, self.count = self.count, 0
        for line in islice(_whole_lines(self.file), kept):
            self._hash.update(line)
            self._end += len(line)
            self.count += 1
        os.truncate(self.file, self._end)

    def mark(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of the journal: the number of its events, and a hash."""
        return {"events": self.count, "journal": self._hash.hexdigest()}

    def write(self, kind: str, update: int, **content: Any) -> dict[str, Any]:
        """Append an event, and return it."""
        event = {"kind": kind, "update": update, **content}
        if not self.silent:
            line = json.dumps(event, separators=(",", ":")) + "\n"
            self._waiting.append(line)
            self._hash.update(line.encode())
            self.count += 1
            try:
                self._append()
            except OSError as error:
                if error.errno not in FULL:
                    raise self._explain(error) from error
        return event

    def beat(self) -> None:
        """Show by the file's time that the run goes on; at most once a second."""
        if not self.silent and time.monotonic() - self._beaten >= BEAT:
            self._beaten = time.monotonic()
            with suppress(OSError):
                os.utime(self.file)

    def settle(self) -> None:
        """Force all events onto the disk, before a checkpoint or a result relies on them.

        Raises:
            UserError: there is no room for them; it names the checkpoint that is kept.
        """
        if self.silent:
            return
        try:
            self._append()
            force_to_disk(self.file)
            force_to_disk(self.file.parent)
        except OSError as error:
            raise self._explain(error) from error

    def _append(self) -> None:
        """Write the waiting events over what an earlier attempt may have left of them."""
        if not self._waiting:
            return
        left = memoryview("".join(self._waiting).encode())
        end = self._end + len(left)
        with self.file.open("r+b", buffering=0) as stream:
            stream.truncate(self._end)
            stream.seek(self._end)
            while left:
                left = left[stream.write(left) :]
        self._waiting, self._end = [], end

    def _explain(self, error: OSError) -> UserError:
        then = remedy(self.file.parent / CHECKPOINTS)
        return UserError(f"cannot write {self.file}: {reason_of(error)}; {then}")


def find_misfit(folder: Path, mark: Mapping[str, Any]) -> str | None:
    """Say why a journal is not the one that a checkpoint has a mark of; None where it is.

    Args:
        mark: of an EventLog; in earlier versions the number of events alone.
    """
    kept, file = mark.get("events"), folder / FILE
    if not isinstance(kept, int) or kept < 0:
        return "it counts no events"
    found, count = hashlib.sha256(), 0
    try:
        for line in islice(_whole_lines(file) if file.exists() else (), kept):
            found.update(line)
            count += _event_of(line) is not None
    except OSError as error:
        return f"{FILE}, which it relies on, cannot be read ({error.strerror or error})"
    if count < kept:
        return f"{count} of the {kept} events in {FILE} that it relies on are left"
    if mark.get("journal", found.hexdigest()) != found.hexdigest():
        return f"one of the {kept} events in {FILE} that it relies on was changed"
    return None


def read_lines(file: Path) -> Iterator[bytes]:
    """Yield the lines of a journal, which may be longer than memory, without their ends.

    Raises:
        UserError: a line is longer than any event, or the file is a pipe or a device.
        OSError: it cannot be read.
    """
    for line in _lines(file):
        yield line.rstrip(b"\r\n")


def _lines(file: Path) -> Iterator[bytes]:
    check_regular(file)
    with file.open("rb") as stream:
        while line := stream.readline(LONGEST + 1):
            if len(line) > LONGEST:
                raise UserError(
                    f"{file} has a line of more than {LONGEST >> 20} MiB, which is no event; "
                    f"delete {file.parent} and run it again"
                )
            yield line


def _whole_lines(file: Path) -> Iterator[bytes]:
    return (line for line in _lines(file) if line.endswith(b"\n"))


def read(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a run; a truncated last line is skipped."""
    file = folder / FILE
    if not file.exists():
        return
    for line in read_lines(file):
        if (event := _event_of(line)) is not None:
            yield event


def _event_of(line: bytes) -> dict[str, Any] | None:
    try:
        event = json_of(line.decode(errors="replace"))
    except ValueError:
        return None
    return event if isinstance(event, dict) and isinstance(event.get("update"), int) else None


def renumber(events: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the events of a run in their order, those of an older monitor with today's layers.

    Journals of layerlab 0.1 call a monitor's readings `rows`. They count the embedding as layer 0
    and the first block as 1, but for readings of attention.
    """
    older = False
    for event in events:
        kind = str(event.get("kind"))
        if kind == "monitor":
            older = _OLDER in event
        yield _CURRENT[kind](event) if older and kind in _CURRENT else dict(event)


def _readings(event: Mapping[str, Any]) -> dict[str, Any]:
    rows = event[_OLDER] if isinstance(event[_OLDER], list) else []
    kept = {name: value for name, value in event.items() if name != _OLDER}
    return {**kept, "readings": [_shift(row) for row in rows if isinstance(row, dict)]}


def _alarm(event: Mapping[str, Any]) -> dict[str, Any]:
    shifted = _shift(event)
    if shifted.get("layer") == event.get("layer"):
        return shifted
    named = _NAMED.sub(layer_name(shifted["layer"]), str(event.get("text")), count=1)
    return {**shifted, "text": named}


def _shift(row: Mapping[str, Any]) -> dict[str, Any]:
    layer = row.get("layer")
    if row.get("measure") not in _SHIFTED or not isinstance(layer, int):
        return dict(row)
    return {**row, "layer": layer + EMBEDDING}


_CURRENT = {"monitor": _readings, "alarm": _alarm}
