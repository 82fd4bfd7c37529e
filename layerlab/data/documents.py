"""The documents of a source on disk, read once: cut in two, and given out in bounded pieces."""

import mmap
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path

from layerlab.data.sources import TextChunk
from layerlab.errors import UserError
from layerlab.validation import short_repr

PIECE = 1 << 18
# A share of held-out text that a boundary between documents may miss before one is cut.
TOLERANCE = 0.25


class DocumentStore:
    """Documents one after another in a file, and the bytes at which each begins."""

    def __init__(
        self, data: bytes | mmap.mmap, starts: "array[int]", begin: int | None = None
    ) -> None:
        """Take the text and where its documents begin; `starts` ends with its length.

        Args:
            begin: where the first document begins, if its end alone is here.
        """
        self.data, self.starts = data, starts
        self.begin = starts[0] if begin is None else begin

    def before(self) -> Iterator[bytes]:
        """Yield what the first document has before its part that is here."""
        for first in range(self.begin, self.starts[0], PIECE):
            yield self.data[first : min(first + PIECE, self.starts[0])]

    @property
    def bytes(self) -> int:
        """Return the number of bytes of UTF-8."""
        return self.starts[-1]

    def split(self, share: float, name: str) -> "tuple[DocumentStore, DocumentStore]":
        """Split off held-out text: the last documents that come nearest to a share of the bytes.

        Where the boundaries between documents lie too far off, the one it falls into is cut at the
        end of a line, else between two words.

        Raises:
            UserError: the text is too short to be cut.
        """
        wanted = round(self.bytes * (1 - share))
        last = len(self.starts) - 1
        at = bisect_left(self.starts, wanted, 1, last)
        around = self.starts[max(1, at - 1) : min(at + 1, last)]
        near = min(around, key=lambda start: abs(start - wanted), default=0)
        if not near or abs(near - wanted) > TOLERANCE * (self.bytes - wanted):
            near = self._end_of_line(wanted)
        if not 0 < near < self.bytes:
            raise UserError(
                f"{name} has {self.bytes} bytes of text, too few to hold out {share:g} of them; "
                "give a longer text"
            )
        cut, end = bisect_left(self.starts, near), bisect_right(self.starts, near)
        begin = near if cut < end else self.starts[cut - 1]
        train, held = (array("q", [near]) for _ in range(2))
        train[:0], held[1:] = self.starts[:cut], self.starts[end:]
        return DocumentStore(self.data, train), DocumentStore(self.data, held, begin)

    def documents(self) -> Iterator[Iterator[str]]:
        """Yield each document in pieces of at most 256 KiB, which end with a line if they can."""
        for first, last in pairwise(self.starts):
            yield self._pieces(first, last)

    def pieces(self) -> Iterator[TextChunk]:
        """Yield the pieces of all documents, one after another."""
        for document in self.documents():
            first = True
            for text in document:
                yield TextChunk(text, first)
                first = False

    @property
    def size(self) -> int:
        """Return the bytes from the first document to the end of the last."""
        return self.starts[-1] - self.starts[0]

    def _pieces(self, first: int, last: int) -> Iterator[str]:
        while first < last:
            end = min(first + PIECE, last)
            if end < last:
                found = self.data.rfind(b"\n", first, end) + 1
                end = found if found > first else self._whole(end)
            yield self.data[first:end].decode()
            first = end

    def _whole(self, position: int) -> int:
        """Return the last place up to here that is not within a character."""
        while position < self.bytes and self.data[position] & 0xC0 == 0x80:
            position -= 1
        return position

    def _end_of_line(self, wanted: int) -> int:
        """Return the nearest place, not far from a wanted one, where a line or a word ends."""
        slack = (self.bytes - wanted) // 2
        first, last = max(0, wanted - slack), min(self.bytes, wanted + slack)
        for mark in (b"\n", b" "):
            around = (
                self.data.rfind(mark, first, wanted) + 1,
                self.data.find(mark, wanted, last) + 1,
            )
            ends = [end for end in around if end]
            if ends:
                return min(ends, key=lambda end: abs(end - wanted))
        return self._whole(wanted)


class TextCursor:
    """The documents of a source, taken a part at a time from any byte of it on.

    Attributes:
        hash: of all bytes before the next one to be taken.
    """

    def __init__(
        self, pieces: Iterator[TextChunk], name: str, skip: int = 0, limit: int | None = None
    ) -> None:
        """Pass over what comes before.

        Args:
            name: of the source.
            skip: bytes that come before.
            limit: bytes of the source that are taken, with those before.
        """
        self.pieces, self.name = pieces, name
        self.left = None if limit is None else max(0, limit - skip)
        self.rest: TextChunk | None = None
        self.hash = blake2b(digest_size=16)
        while skip and (chunk := next(self.pieces, None)) is not None:
            data = _encode(chunk.text, name)
            self.hash.update(data[:skip])
            if len(data) > skip:
                self.rest = TextChunk(data[skip:].decode(errors="ignore"), False)
            skip = max(0, skip - len(data))

    @property
    def more(self) -> bool:
        """Return whether any text is left."""
        while self.left != 0 and (self.rest is None or not self.rest.text):
            self.rest = next(self.pieces, None)
            if self.rest is None:
                return False
        return self.left != 0

    def take(self, size: int) -> Iterator[TextChunk]:
        """Yield so many bytes, or what is left; a piece that goes beyond is cut at a line's end."""
        size = size if self.left is None else min(size, self.left)
        while size and self.more and self.rest is not None:
            text, first = self.rest
            data = _encode(text, self.name)
            self.rest, taken = None, len(data)
            if taken > size:
                end = data.rfind(b"\n", 0, size) + 1 or size
                text = data[:end].decode(errors="ignore") or text[0]
                taken = size = len(text.encode())
                self.rest = TextChunk(data[taken:].decode(), False)
            self.hash.update(data[:taken])
            size -= taken
            if self.left is not None:
                self.left = max(0, self.left - taken)
            yield TextChunk(text, first)


@dataclass(frozen=True)
class PieceTexts:
    """The texts of several stores, piece by piece, which can be read again."""

    stores: Sequence[DocumentStore]

    def __iter__(self) -> Iterator[str]:
        return (piece.text for store in self.stores for piece in store.pieces())


@contextmanager
def store_documents(
    pieces: Iterable[TextChunk], file: Path, name: str, limit: int | None
) -> Iterator[DocumentStore]:
    """Write the documents of a source to a file, and yield them; empty ones are left out.

    Args:
        limit: bytes that are taken.

    Raises:
        UserError: there is no text, or it cannot be written as UTF-8.
    """
    starts, done = array("q", [0]), 0
    with file.open("w+b") as stream:
        for text, first in pieces:
            if first and done > starts[-1]:
                starts.append(done)
            data = _encode(text, name)
            if limit is not None and done + len(data) > limit:
                data = data[: limit - done].decode(errors="ignore").encode()
                done += stream.write(data)
                break
            done += stream.write(data)
        if not done:
            raise UserError(f"{name} holds no text; give one with words in it")
        if starts[-1] != done:
            starts.append(done)
        stream.flush()
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            yield DocumentStore(mapped, starts)


def _encode(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{name} holds half of a surrogate pair ({text[error.start]!r}), which is no text, "
            f"behind {short_repr(text[max(0, error.start - 32) : error.start])}; mend that "
            "document, or type layerlab adapt clean, which leaves it out"
        ) from None
