"""The journal of a run: one JSON event a line, which reports read and resumed runs continue."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from layerlab.errors import UserError
from layerlab.records.checkpoint_names import remedy
from layerlab.records.parse import json_of
from layerlab.system.files import FULL, check_regular, write_file

FILE = "events.jsonl"
LONGEST = 64 << 20  # bytes of a line: a reading of all heads of the largest models has less


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
        if not silent:
            kept = list(read(folder))[:count]
            write_file(self.file, "".join(map(_line, kept)))
            count = len(kept)
        self.count = count
        self._waiting: list[str] = []
        self._end = 0 if silent else self.file.stat().st_size

    def write(self, kind: str, update: int, **content: Any) -> dict[str, Any]:
        """Append an event, and return it."""
        event = {"kind": kind, "update": update, **content}
        if not self.silent:
            self._waiting.append(_line(event))
            self.count += 1
            try:
                self._append()
            except OSError as error:
                if error.errno not in FULL:
                    raise self._explain(error) from error
        return event

    def settle(self) -> None:
        """Flush all events to the disk, before a checkpoint or a result relies on them.

        Raises:
            UserError: there is no room for them; it names the checkpoint that is kept.
        """
        try:
            self._append()
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
        then = remedy(self.file.parent / "checkpoints")
        return UserError(f"cannot write {self.file}: {error.strerror or error}; {then}")


def read_lines(file: Path) -> Iterator[bytes]:
    """Yield the lines of a journal, which may be longer than memory, without their ends.

    Raises:
        UserError: a line is longer than any event, or the file is a pipe or a device.
        OSError: it cannot be read.
    """
    check_regular(file)
    with file.open("rb") as stream:
        while line := stream.readline(LONGEST + 1):
            if len(line) > LONGEST:
                raise UserError(
                    f"{file} has a line of more than {LONGEST >> 20} MiB, which is no event; "
                    f"delete {file.parent} and run it again"
                )
            yield line.rstrip(b"\r\n")


def read(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a run; a truncated last line is skipped."""
    file = folder / FILE
    if not file.exists():
        return
    for whole in read_lines(file):
        line = whole.decode(errors="replace")
        try:
            event = json_of(line)
        except ValueError:
            continue
        if isinstance(event, dict) and isinstance(event.get("update"), int):
            yield event


def _line(event: Mapping[str, Any]) -> str:
    return json.dumps(event, separators=(",", ":")) + "\n"
