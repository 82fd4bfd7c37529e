"""The lines of a ledger: each carries the digest of the one before, and none is ever changed.

`ledger.jsonl` only grows. `head.json` beside it says how many lines there are, and is written once
they are on the disk, so that a line taken off the end, or cut off there, is missed too. Whoever
rewrites both files can hide it: keep the digest that `layerlab ledger status` prints where others
see it.
"""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from layerlab.errors import UserError
from layerlab.system.files import check_link, force_to_disk, read_whole, resolve, write_file
from layerlab.system.locks import is_locked, lock_folder
from layerlab.system.write_errors import explain_write
from layerlab.validation import short_repr

FILE, HEAD = "ledger.jsonl", "head.json"
START = "0" * 64  # what stands for the digest before the first line
WAIT = 60.0  # seconds for another process that adds a line, which takes a moment

Line = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Chain:
    """The lines of a ledger, found whole and in order.

    Attributes:
        folder: of the ledger.
        lines: as they stand there.
        end: bytes of the file up to the end of the last line.
        cut: what is left of a line that was cut off while it was written; it does not count.
    """

    folder: Path
    lines: tuple[Line, ...] = ()
    end: int = 0
    cut: str = ""
    _open: bool = field(default=False, compare=False)  # whether the last line has no line break

    @property
    def digest(self) -> str:
        """The digest of the last line, which stands for all of them."""
        return str(self.lines[-1]["digest"]) if self.lines else START


def hold_ledger(folder: Path) -> AbstractContextManager[None]:
    """Let no other process add to a ledger meanwhile; wait for one that does."""
    return lock_folder(folder, WAIT, "name another folder")


def wait_for_writer(folder: Path) -> None:
    """Wait while another process adds to a ledger, and write nothing."""
    end = time.monotonic() + WAIT
    while is_locked(folder) and time.monotonic() < end:
        time.sleep(WAIT / 1000)


def begin_chain(folder: Path, content: Mapping[str, Any]) -> Chain:
    """Write the first line of a ledger, which is held.

    Raises:
        UserError: the folder has a ledger, or cannot be written.
    """
    # A process may have been killed between the head of no lines and the first one.
    if (folder / FILE).exists() or ((folder / HEAD).exists() and _read_head(folder)[0]):
        raise UserError(
            f"{folder} has a ledger already, and none is ever replaced; name another folder, or "
            f"type layerlab ledger status {folder}"
        )
    chain = Chain(folder=resolve(folder))
    line = _follow(chain, content)
    left = _spell(line) + b"\n"
    try:
        _write_head(chain.folder, 0, START)  # from now on, a ledger without one has lost it
        force_to_disk(write_file(chain.folder / FILE, left))
        return _note(chain, line, len(left))
    except UserError:
        for name in (FILE, HEAD):
            (chain.folder / name).unlink(missing_ok=True)
        raise


def append_line(chain: Chain, content: Mapping[str, Any]) -> Chain:
    """Add a line to a ledger, which is held and was read since then.

    What was left of a line that was cut off goes into the new one, so that nothing is lost.

    Raises:
        UserError: it cannot be written.
    """
    path = chain.folder / FILE
    line = _follow(chain, content)
    left = (b"\n" if chain._open else b"") + _spell(line) + b"\n"
    with explain_write(path):
        check_link(path, chain.folder)
        with path.open("r+b") as stream:
            stream.seek(chain.end)
            rest = stream.read()
            _replace_end(stream, chain.end, left)
        force_to_disk(path)
    try:
        return _note(chain, line, chain.end + len(left))
    except UserError:  # what is told to have failed must not count
        with path.open("r+b") as stream:
            _replace_end(stream, chain.end, rest)
        force_to_disk(path)
        raise


def _replace_end(stream: BinaryIO, end: int, content: bytes) -> None:
    stream.truncate(end)
    stream.seek(end)
    stream.write(content)


def _follow(chain: Chain, content: Mapping[str, Any]) -> Line:
    """Return the line that comes after those of a chain."""
    line = {
        "line": len(chain.lines) + 1,
        "before": chain.digest,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        **content,
        **({"cut": chain.cut} if chain.cut else {}),
    }
    return {**line, "digest": _digest(line)}


def _note(chain: Chain, line: Line, end: int) -> Chain:
    """Write down how many lines there are now, and return them."""
    _write_head(chain.folder, line["line"], line["digest"])
    return Chain(folder=chain.folder, lines=(*chain.lines, line), end=end)


def _write_head(folder: Path, lines: int, digest: str) -> None:
    write_file(folder / HEAD, json.dumps({"lines": lines, "digest": digest}) + "\n")


def read_chain(folder: Path) -> Chain:
    """Read a ledger and check that every line is as it was written, and where it was written.

    Raises:
        UserError: there is no ledger, or a line was changed, removed or moved.
    """
    path = folder / FILE
    if not path.is_file():
        raise UserError(
            f"there is no ledger in {short_repr(str(folder))}: it has no {FILE}; type layerlab "
            f"ledger new FOLDER --baseline ARM"
        )
    head = _read_head(folder)  # before the lines: another process may add one just now
    content = read_whole(path)
    pieces = content.split(b"\n")
    rest = pieces.pop()
    if rest and _parse(rest) is not None:  # only its line break is gone
        pieces.append(rest)
        rest = b""
    lines: list[Line] = []
    before = START
    for number, piece in enumerate(pieces, start=1):
        line = _parse(piece)
        if line is None:
            raise UserError(
                f"line {number} of {path} was changed after it was written; {_restore()}"
            )
        if line["line"] != number or line["before"] != before:
            raise UserError(f"{_describe_gap(line, number, pieces)} in {path}; {_restore()}")
        lines.append(line)
        before = line["digest"]
    if not lines:
        raise UserError(f"{path} is empty; {_restore()}")
    _check_head(path, lines, head)
    return Chain(
        folder=resolve(folder),
        lines=tuple(lines),
        end=len(content) - len(rest),
        cut=rest.decode("utf-8", "replace"),
        _open=bool(lines) and not rest and not content.endswith(b"\n"),
    )


def _describe_gap(line: Line, number: int, pieces: Sequence[bytes]) -> str:
    """Say what happened where a line that is whole does not follow the one before."""
    later = {one["line"] for piece in pieces[number:] if (one := _parse(piece)) is not None}
    if line["line"] == number:
        return f"line {number} does not follow the one before it, which is of another ledger,"
    if number in later or line["line"] < number:
        return f"line {line['line']} stands in place {number}: lines were moved"
    return f"line {number} was removed"


def _check_head(path: Path, lines: Sequence[Line], head: tuple[int, str]) -> None:
    """Compare what there is with how much there was, each line of which was on the disk by then.

    Raises:
        UserError: lines are missing at the end, or were rewritten.
    """
    count, digest = head
    if count > len(lines):
        raise UserError(
            f"line {len(lines) + 1} was removed from the end of {path}, or cut off after it was "
            f"written; {_restore()}"
        )
    if 0 < count <= len(lines) and lines[count - 1]["digest"] != digest:
        raise UserError(
            f"line {count} of {path} is not the one that {HEAD} tells of: it was rewritten; "
            f"{_restore()}"
        )


def _read_head(folder: Path) -> tuple[int, str]:
    path = folder / HEAD
    try:
        found = json.loads(read_whole(path))
        return int(found["lines"]), str(found["digest"])
    except FileNotFoundError:
        raise UserError(
            f"{path} is gone, which tells how many lines the ledger has; {_restore()}"
        ) from None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise UserError(f"{path} was changed; {_restore()}") from None


def _restore() -> str:
    return "copy the ledger back from where it is whole: what follows was judged on all of it"


def _parse(piece: bytes) -> Line | None:
    """Return a line that is exactly as it was written; None where it is not."""
    try:
        line = json.loads(piece)
        written = {name: one for name, one in line.items() if name != "digest"}
        intact = line["digest"] == _digest(written) and _spell(line) == piece
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return line if intact and {"line", "before", "kind"} <= line.keys() else None


def _digest(line: Mapping[str, Any]) -> str:
    return hashlib.sha256(_spell(line)).hexdigest()


def _spell(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode()
