"""Documents into tokens on disk, in bounded memory, with the bytes that each token stands for."""

import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from tokenizers import Encoding, Tokenizer
from transformers import PreTrainedTokenizerFast

from layerlab.corpus.stored import CHECKED
from layerlab.data.documents import DocumentStore
from layerlab.data.sources import TextChunk
from layerlab.tokenization.load import engine, special_tokens
from layerlab.tokenization.round_trip import RoundTrip

# Characters, and documents, that are encoded at once.
CHUNK = 1 << 20
MOST = 4096
# Chunks that are encoded at once, so that no core waits for the end of one, and that wait for it.
AT_ONCE, WAITING = 2, 3


@dataclass(frozen=True)
class TokenLayout:
    """The settings of one tokenization: where tokens go, and how.

    Attributes:
        stem: of the files: `.tokens`, `.starts`, `.hashes`, and `.ends` where bytes are counted.
        kind: of a token, as numpy calls it.
        separator: before each document.
        counted: whether the bytes up to each token are written too, and tokens are decoded again.
        special: whether special tokens that the text spells are those tokens.
    """

    folder: Path
    stem: str
    kind: str
    separator: int
    counted: bool
    special: bool


@dataclass
class Sink:
    """A file that is hashed as it is written."""

    stream: BinaryIO
    size: int = 0
    content: Any = field(default_factory=lambda: blake2b(digest_size=16))

    def write(self, values: np.ndarray) -> None:
        """Append an array."""
        data = values.tobytes()
        self.stream.write(data)
        self.content.update(data)
        self.size += len(data)

    def settle(self) -> None:
        """Wait until the file is on the disk, if later only its size is looked at."""
        if self.size > CHECKED:
            self.stream.flush()
            os.fsync(self.stream.fileno())


class Writer:
    """Tokens, starts, ends and hashes of one stream."""

    def __init__(
        self,
        layout: TokenLayout,
        machine: Tokenizer,
        stack: ExitStack,
        before: Iterable[bytes] = (),
    ) -> None:
        """Open the files.

        Args:
            before: of the first document, what is not written. Its hash is that of all of it, by
                which a copy is found wherever it was cut.
        """
        self.layout, self.tokens, self.documents, self.bytes = layout, 0, 0, 0
        self.trip, self.loss = RoundTrip(machine), ""
        # Of documents that spell a special token, their number, and such a token of the first.
        self.spelled, self.example, self._counted = 0, "", False
        marks = () if layout.special else special_tokens(machine)
        self._marks = re.compile("|".join(map(re.escape, marks)) or "(?!)")
        self.content = _hash()
        for data in before:
            self.content.update(data)
        parts = ("tokens", "starts", "hashes", *(("ends",) if layout.counted else ()))
        self.sinks = {
            part: Sink(stack.enter_context((layout.folder / f"{layout.stem}.{part}").open("wb")))
            for part in parts
        }

    def add(self, piece: TextChunk, found: Encoding) -> None:
        """Append a piece of a document."""
        data = piece.text.encode()
        first = [self.layout.separator] if piece.first else []
        if first:
            self.end_document()
            self.sinks["starts"].write(np.array([self.tokens], np.int64))
            self.documents += 1
            self._counted = False
        if not self._counted and (spelled := self._marks.search(piece.text)):
            self._counted, self.spelled = True, self.spelled + 1
            self.example = self.example or spelled[0]
        self.content.update(data)
        ids = np.array([*first, *found.ids], dtype=self.layout.kind)
        self.sinks["tokens"].write(ids)
        self.tokens += len(ids)
        if self.layout.counted:
            ends = byte_ends(piece.text, found) + self.bytes
            self.sinks["ends"].write(np.array([*(self.bytes for _ in first), *ends], np.int64))
            self.loss = self.loss or self.trip.loss(piece.text, found.ids)
        self.bytes += len(data)

    def end_document(self) -> None:
        """Write the hash of the document that ends here, where there is one."""
        if self.documents:
            self.sinks["hashes"].write(np.frombuffer(self.content.digest(), np.uint64))
            self.content = _hash()

    def summary(self) -> dict[str, Any]:
        """Return what is kept about the stream."""
        hashes = f"{self.layout.stem}.hashes"
        files = {
            f"{self.layout.stem}.{part}": [sink.size, sink.content.hexdigest()]
            for part, sink in self.sinks.items()
        }
        return {
            "kind": self.layout.kind,
            "tokens": self.tokens,
            "documents": self.documents,
            "bytes": self.bytes,
            "files": {name: found for name, found in files.items() if name != hashes},
            "beside": {hashes: files[hashes]},
            "loss": self.loss,
            "spelled": [self.spelled, self.example],
        }


def write_tokens(
    store: DocumentStore,
    tokenizer: PreTrainedTokenizerFast,
    layout: TokenLayout,
    progress: Callable[[str, float], None],
) -> dict[str, Any]:
    """Write a stream, with a separator before each document to predict its first token."""
    machine = engine(tokenizer, special=layout.special)
    with ExitStack() as stack:
        writer = Writer(layout, machine, stack, store.before())
        for pieces, encoded in _encode_ahead(machine, _chunks(store.pieces()), layout):
            for piece, found in zip(pieces, encoded, strict=True):
                writer.add(piece, found)
            progress(f"encoding {layout.stem}", writer.bytes / store.size)
        writer.end_document()
        for sink in writer.sinks.values():
            sink.settle()
    return writer.summary()


def byte_ends(text: str, found: Encoding) -> np.ndarray:
    """Return the bytes of the text up to each token's end; the last one takes what is left.

    A character that several tokens share counts with the first of them.
    """
    if not found.ids:
        return np.zeros(0, np.int64)
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    sizes = 1 + (codes > 0x7F).astype(np.int64) + (codes > 0x7FF) + (codes > 0xFFFF)
    upto = np.concatenate([[0], np.cumsum(sizes)])
    ends = np.maximum.accumulate(upto[[end for _, end in found.offsets]])
    ends[-1] = upto[-1]
    return ends


def _hash() -> Any:
    return blake2b(digest_size=8)


def _encode_ahead(
    machine: Tokenizer, chunks: Iterator[list[TextChunk]], layout: TokenLayout
) -> Iterator[tuple[list[TextChunk], list[Encoding]]]:
    """Yield each chunk encoded, while the next ones are; the library keeps no thread waiting."""
    waiting: deque[tuple[list[TextChunk], Future[list[Encoding]]]] = deque()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for pieces in chunks:
            waiting.append((pieces, pool.submit(_encode, machine, pieces, layout)))
            if len(waiting) > WAITING:
                first, found = waiting.popleft()
                yield first, found.result()
        for first, found in waiting:
            yield first, found.result()


def _encode(machine: Tokenizer, pieces: list[TextChunk], layout: TokenLayout) -> list[Encoding]:
    # Only the slower one says which characters a token stands for.
    encode = machine.encode_batch if layout.counted else machine.encode_batch_fast
    found: list[Encoding] = encode([piece.text for piece in pieces], add_special_tokens=False)
    return found


def _chunks(pieces: Iterator[TextChunk]) -> Iterator[list[TextChunk]]:
    chunk: list[TextChunk] = []
    size = 0
    for piece in pieces:
        chunk.append(piece)
        size += len(piece.text)
        if size >= CHUNK or len(chunk) >= MOST:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
