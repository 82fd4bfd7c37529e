"""Text files, packed or not, in pieces: what is no text, or unpacks without end, is one line."""

import codecs
import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from layerlab.data.archives import ROW, Allowance
from layerlab.data.charset import advise_conversion, refuse_zeros
from layerlab.errors import UserError
from layerlab.system.files import check_regular

READ = 1 << 20
# Characters of a line: what JSON makes of them may take 25 times as much memory.
LONGEST = 2**25


def _open_zstd(path: Path, mode: str) -> Any:
    import pyarrow

    return pyarrow.CompressedInputStream(pyarrow.OSFile(str(path), mode), "zstd")


PACKED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".zst": _open_zstd}


def read_text_blocks(path: Path, line: int = 0) -> Iterator[str]:
    """Read a text file in blocks of text, with lines ending in a line feed.

    Args:
        line: bytes that each line of a packed file counts beside its own.

    Raises:
        UserError: it is not UTF-8, not whole, or unpacks to more than is allowed.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    newlines = io.IncrementalNewlineDecoder(None, translate=True)
    done = 0
    for block in _bytes(path, line):
        kept = len(decoder.getstate()[0])
        try:
            text = decoder.decode(refuse_zeros(block), final=not block)
        except UnicodeDecodeError as error:
            position = done - kept + error.start
            raise UserError(
                f"{path}: byte {position} is not UTF-8 text; {advise_conversion(error, str(path))}"
            ) from None
        text = newlines.decode(text, final=not block)
        if text:
            yield text.removeprefix("\ufeff") if done == 0 else text
        done += len(block)


def _bytes(path: Path, line: int) -> Iterator[bytes]:
    """Yield a file in blocks, the last of which is empty."""
    packed = PACKED.get(path.suffix.lower())
    check_regular(path)
    allowance = Allowance(path)
    try:
        with (packed or open)(path, "rb") as stream:
            while block := stream.read(READ):
                if packed:
                    allowance.spend(len(block) + line * block.count(b"\n"))
                yield block
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise UserError(f"{path} is not a whole gzip file; copy it anew") from None
    except OSError as error:
        if error.errno is None:  # of what unpacks it
            raise UserError(f"{path} is not a whole zstd file ({error}); copy it anew") from None
        raise unreadable(path, error) from None
    yield b""


def read_lines(path: Path) -> Iterator[str]:
    """Read the lines of a text file, each with its line feed.

    Raises:
        UserError: as for its text, or a line is longer than a row may be.
    """
    begun: list[str] = []  # of a line that is longer than a block
    number, size = 1, 0
    for text in read_text_blocks(path, ROW):
        first, *others = text.split("\n")
        begun.append(first)
        size += len(first)
        for line in others:
            _check_length(path, number, size)
            yield "".join(begun) + "\n"
            begun, number, size = [line], number + 1, len(line)
        _check_length(path, number, size)
    if rest := "".join(begun):
        yield rest


def _check_length(path: Path, number: int, size: int) -> None:
    if size > LONGEST:
        raise UserError(
            f"{path}, line {number} has more than {LONGEST:,} characters, the most of a row; cut "
            "it into several"
        )


def unreadable(path: Path, error: OSError) -> UserError:
    """Return the error about a file that the system cannot read."""
    message = " ".join((error.strerror or str(error)).split())
    return UserError(f"cannot read {path}: {message}; name another file")
