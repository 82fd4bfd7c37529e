"""The events of a run, a line each: what a report draws, and what a resumed run goes on from."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from layerlab.disk import write_file

FILE = "events.jsonl"


class Journal:
    """Appends events to a file; nothing is lost that was written before a checkpoint.

    Attributes:
        count: events so far, which a checkpoint remembers.
    """

    def __init__(self, folder: Path, count: int, *, silent: bool = False) -> None:
        """Go on from a checkpoint: what was written after it is forgotten, and happens again.

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

    def write(self, kind: str, update: int, **content: Any) -> dict[str, Any]:
        """Append an event, and give it."""
        event = {"kind": kind, "update": update, **content}
        if not self.silent:
            with self.file.open("a", encoding="utf-8") as stream:
                stream.write(_line(event))
            self.count += 1
        return event


def read(folder: Path) -> Iterator[dict[str, Any]]:
    """The events of a run; a last line that was cut off is passed over."""
    file = folder / FILE
    if not file.exists():
        return
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and isinstance(event.get("update"), int):
            yield event


def _line(event: Mapping[str, Any]) -> str:
    return json.dumps(event, separators=(",", ":")) + "\n"
