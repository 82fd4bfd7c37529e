"""The text that is read: the built-in one, a file or standard input; read without torch."""

import codecs
import hashlib
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from layerlab import builtin
from layerlab.console.tables import printable
from layerlab.data.charset import advise_conversion, refuse_zeros
from layerlab.errors import UserError
from layerlab.loading.options import AUTO, check_lengths, check_unread
from layerlab.system.files import check_regular

if TYPE_CHECKING:  # importing it takes seconds, and a text that is not there is told at once
    from torch import Tensor

SAMPLES = 4
PIECE = 2**20  # bytes that are read at once
CONTEXT = 512
# Of a text no more is read than its samples can need: so much for each of their tokens.
BYTES, LEAST = 64, 1 << 20
# Of a text whose samples are counted once the model is known: enough for 16,384 features.
MOST_TOKENS = 4 * 16_384
# What else than sentences files hold, by their ending.
MARKUP = {
    **dict.fromkeys(
        (".jsonl", ".ndjson", ".json"),
        "names of fields and all; for one field alone type: jq -r .text FILE > NEW",
    ),
    **dict.fromkeys((".csv", ".tsv"), "commas, headings and all; expected a file of sentences"),
    **dict.fromkeys((".html", ".htm", ".xml"), "tags and all; expected a file of sentences"),
}
_LOG = logging.getLogger("layerlab")


@dataclass(frozen=True, kw_only=True)
class TextInput:
    """The input of an inspection: texts, one long text to cut into samples, or token ids.

    Attributes:
        source: how the report names it.
        samples: how many pieces of `context` tokens are cut from a long text, or "auto".
        raw: the bytes of a file, as they were read.
        cut: whether the file goes on behind them.
    """

    source: str
    texts: tuple[str, ...] = ()
    ids: tuple["Tensor", ...] = ()
    samples: Any = None
    context: Any = None
    raw: bytes = field(default=b"", repr=False)
    cut: bool = False

    def __post_init__(self) -> None:
        """Refuse impossible lengths."""
        check_lengths(samples=self.samples, context=self.context)

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is read: only weights are looked at."""
        return not self.texts and not self.ids

    @property
    def hash(self) -> str:
        """Return the hash of the input: of a file that was read whole, as sha256sum prints it."""
        digest = hashlib.sha256(self.raw)
        for text in () if self.raw else self.texts:
            digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
        for ids in self.ids:
            digest.update(ids.long().cpu().numpy().tobytes() + b"\0")
        return f"sha256:{digest.hexdigest()}"

    @property
    def hash_source(self) -> str:
        """Return what the hash is taken of, in words."""
        if self.raw:
            return f"the first {len(self.raw):,} bytes" if self.cut else "the whole text"
        return "the token ids" if self.ids else "the texts, with a zero byte behind each"


def no_text(given: Mapping[str, Any]) -> TextInput:
    """Return the input of an inspection that looks at weights alone.

    Args:
        given: options that speak of a text, or of how a model is loaded, with what the user gave.

    Raises:
        UserError: one of them was given.
    """
    check_unread(given)
    return TextInput(source="no text: weights alone")


def sample(*, samples: Any = SAMPLES, context: Any = None) -> TextInput:
    """Return the built-in text, cut into samples."""
    raw = builtin.SAMPLE.read_bytes()
    texts = (raw.decode("utf-8"),)
    return TextInput(
        source="built-in sample", texts=texts, samples=samples, context=context, raw=raw
    )


def read_text(name: str | None, *, samples: Any = SAMPLES, context: Any = None) -> TextInput:
    """Read what `--text` names, and the built-in text where it names nothing.

    Raises:
        UserError: as `read_file`.
    """
    sizes = {"samples": samples, "context": context}
    return sample(**sizes) if name is None else read_file(name, **sizes)


def read_file(name: str, *, samples: Any = SAMPLES, context: Any = None) -> TextInput:
    """Read a file (or - for standard input) cut into samples.

    Raises:
        UserError: no such file, not UTF-8 text, or nothing in it.
    """
    source = "standard input" if name == "-" else name
    asked = TextInput(source=source, samples=samples, context=context)
    counted = (asked.samples or SAMPLES) if samples != AUTO else 0
    tokens = counted * (asked.context or CONTEXT) or MOST_TOKENS
    most = max(LEAST, BYTES * tokens)
    try:
        text = _begin(name, most)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UserError(f"--text {name}: {reason}; expected a text file, or -") from error
    try:
        # What was cut may end inside a character.
        complete = len(text) < most
        decoded = codecs.getincrementaldecoder("utf-8-sig")().decode(
            refuse_zeros(text), final=complete
        )
    except UnicodeDecodeError as error:
        file = "FILE" if name == "-" else name
        raise UserError(
            f"--text {name}: byte {error.start} is not UTF-8 text; {advise_conversion(error, file)}"
        ) from error
    if not decoded.strip():
        raise UserError(f"--text {name}: the text is empty; expected some words to read")
    if (hint := MARKUP.get(Path(name).suffix.lower())) is not None:
        _LOG.warning("--text %s: %s", printable(name), f"it is read as plain text, {hint}")
    return replace(asked, texts=(decoded,), raw=text, cut=not complete)


def _begin(name: str, most: int) -> bytes:
    """Return the beginning of a file or of standard input, which need not end."""
    if name == "-":
        if sys.stdin is None:
            raise UserError("--text -: standard input is closed; give a file")
        return _read_up_to(sys.stdin.buffer, most)
    check_regular(Path(name))
    with Path(name).open("rb") as stream:
        return _read_up_to(stream, most)


def _read_up_to(stream: BinaryIO, most: int) -> bytes:
    """Read piece by piece: a reader makes room for all that it is asked for."""
    found = bytearray()
    while piece := stream.read(min(PIECE, most - len(found))):
        found += piece
    return bytes(found)
