"""The tokens of one source, and the documents that stand in training and in held-out text both."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from layerlab.corpus.shards import ShardReader
from layerlab.validation import short_repr

SIDES = ("train", "validation")


class KeptTokens:
    """Tokens on disk without those of some documents; in memory is only where these would stand."""

    def __init__(self, tokens: np.ndarray, starts: np.ndarray, documents: np.ndarray) -> None:
        """Find the places of what is kept.

        Args:
            starts: where each document begins.
            documents: whether each is left out.
        """
        self.tokens, self.dtype = tokens, tokens.dtype
        sizes = np.diff(starts, append=len(tokens))[~documents]
        self.starts = np.cumsum(sizes) - sizes
        shift = starts[~documents] - self.starts
        first = np.diff(shift, prepend=-1) > 0
        self._begins, self._shift = self.starts[first], shift[first]
        self._count = int(sizes.sum())

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, places: np.ndarray | slice) -> np.ndarray:
        if isinstance(places, slice):
            places = np.arange(*places.indices(len(self)))
        runs = np.searchsorted(self._begins, places, side="right") - 1
        found: np.ndarray = self.tokens[places + self._shift[runs]]
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenStream:
    """The tokens of one source: a separator, a document, a separator, a document.

    Attributes:
        name: of the source that was really read.
        tokens: on disk, 2 bytes each, or 4 where the vocabulary has more than 65,535 entries.
        starts: where the separators stand.
        ends: bytes of the text up to and with each token; of held-out text alone.
        bytes: of the text.
        weight: of the source, beside the others.
        hashes: of the text of each document; of one whose end alone is held out, of all of it.
        loss: an example of how held-out text does not come back from its tokens, where it does not.
        shards: what comes after these tokens, tokenized while a run goes on.
    """

    name: str
    tokens: np.ndarray | KeptTokens
    starts: np.ndarray
    ends: np.ndarray | None
    bytes: int
    weight: float
    hashes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint64))
    loss: str = ""
    shards: ShardReader | None = None

    @property
    def documents(self) -> int:
        """Return the number of documents."""
        return len(self.starts)


def open_stream(
    folder: Path, stem: str, name: str, content: dict[str, Any], weight: float
) -> TokenStream:
    """Open a stream on disk by what the table of its corpus keeps of it.

    Args:
        stem: of its files.
    """

    def map_file(part: str, kind: str) -> np.ndarray:
        return np.memmap(folder / f"{stem}.{part}", dtype=kind, mode="r").view(np.ndarray)

    return TokenStream(
        name=name,
        tokens=map_file("tokens", content["kind"]),
        starts=map_file("starts", "int64"),
        ends=map_file("ends", "int64") if f"{stem}.ends" in content["files"] else None,
        bytes=content["bytes"],
        weight=weight,
        hashes=map_file("hashes", "uint64"),
        loss=content["loss"],
    )


def describe_copies(train: Sequence[TokenStream], held_out: Sequence[TokenStream]) -> list[str]:
    """Say of each held-out text how much of it stands in the training text too."""
    learned = _hashes(train)
    found = []
    for stream in held_out:
        copied = np.isin(stream.hashes, learned)
        if copied.any() and stream.ends is not None:
            last = np.append(stream.starts[1:], len(stream.tokens)) - 1
            size = int(np.diff(stream.ends[last], prepend=0)[copied].sum())
            found.append(
                f"{size:,} of {stream.bytes:,} held-out bytes of {stream.name} "
                f"({copied.sum():,} of {stream.documents:,} documents) stand in the training text "
                "too, word for word: their loss tells what was memorized"
            )
    return found


def describe_spelled(sources: Iterable[dict[str, Any]]) -> list[str]:
    """Say of each source how many documents spell special tokens, which are read as text."""
    found = []
    for source in sources:
        counts, examples = zip(*(source[side]["spelled"] for side in SIDES), strict=True)
        if any(counts):
            found.append(
                f"{sum(counts):,} documents of {source['name']} spell special tokens of the "
                f"tokenizer, as {short_repr(next(filter(None, examples)))}: they are read as text; "
                "where tokens are meant, write special_tokens = true beside that text"
            )
    return found


def leave_out_copies(
    train: Sequence[TokenStream], held_out: Sequence[TokenStream]
) -> tuple[tuple[TokenStream, ...], list[str]]:
    """Return training text without the documents that are held out too, and what was left out."""
    secret, kept, remarks = _hashes(held_out), [], []
    for stream in train:
        copied = np.isin(stream.hashes, secret)
        if copied.any():
            remarks.append(
                f"{copied.sum():,} of {stream.documents:,} documents of {stream.name} are copies "
                "of held-out ones, and are not learned"
            )
            stream = _without(stream, copied)
        kept.append(stream)
    return tuple(kept), remarks


def _hashes(streams: Sequence[TokenStream]) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.uint64), *(one.hashes for one in streams)])


def _without(stream: TokenStream, documents: np.ndarray) -> TokenStream:
    """Return a stream of training text without some documents."""
    kept = KeptTokens(stream.tokens[:], stream.starts, documents)
    return replace(stream, tokens=kept, starts=kept.starts, hashes=stream.hashes[~documents])


def drop_documents(tokens: np.ndarray, starts: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """Return tokens without those of some documents.

    Args:
        starts: where each document begins.
        documents: whether each is left out.
    """
    return tokens[np.repeat(~documents, np.diff(starts, append=len(tokens)))]
