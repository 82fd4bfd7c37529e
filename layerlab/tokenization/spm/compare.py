"""Compares a converted tokenizer with SentencePiece's own reader, text by text."""

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from layerlab import builtin
from layerlab.errors import UserError
from layerlab.tokenization.spm.model_file import CONTROL, DEFINED, SPACE
from layerlab.validation import short_repr

SAMPLE = 4_000  # characters of the built-in text
SYMBOLS = 200  # user-defined symbols that are tried
SHOWN = 4  # pieces
ODD = (
    "",
    " ",
    "   ",
    " the  cat ",
    "two\nlines\n\nand a\ttab",
    "don't 3.14 + 2,718 = ?!",
    "été naïve Straße",
    "你好,世界。ＡＢＣ 一二三",
    "Привет, мир",
    "😀 and 👍 ÿ",
)


def open_reader(proto: Any, path: Path) -> Any:
    """Return SentencePiece's own reader of a model.

    Raises:
        UserError: it refuses the model.
    """
    from sentencepiece import SentencePieceProcessor

    try:
        return SentencePieceProcessor(model_proto=proto.SerializeToString())
    except (RuntimeError, ValueError) as error:
        message = " ".join(str(error).split()).rstrip(".")
        raise UserError(f"SentencePiece itself refuses {path}: {message}; copy it anew") from None


def compare(engine: Tokenizer, reader: Any, proto: Any, path: Path) -> None:
    """Refuse an engine that cuts one of the sample texts otherwise than SentencePiece does.

    Raises:
        UserError: names the first text that differs.
    """
    for text in _texts(proto):
        wanted = reader.encode(text)
        found = engine.encode(text, add_special_tokens=False).ids
        if found != wanted:
            # The first tokens that differ: a text may be long.
            pairs = zip_longest(found, wanted)
            start = next(number for number, (one, other) in enumerate(pairs) if one != other)
            raise UserError(
                f"{path} cannot be converted: from token {start} a fast tokenizer cuts "
                f"{short_repr(text)} into {_pieces(proto, found[start:])}, and SentencePiece into "
                f"{_pieces(proto, wanted[start:])}; expected a tokenizer with a tokenizer.json"
            )


def _texts(proto: Any) -> Iterator[str]:
    """Yield the texts to compare; none holds a control token, which a fast tokenizer finds."""
    control = [one.piece for one in proto.pieces if one.type == CONTROL and one.piece]
    sample = builtin.SAMPLE.read_text("utf-8")[:SAMPLE]
    symbols = [one.piece for one in proto.pieces if one.type == DEFINED][:SYMBOLS]
    written = [one.replace(SPACE, " ") for one in symbols]
    texts = [*ODD, *sample.splitlines(), sample]
    for one in written:
        texts += [one, f"a{one}b", f"the {one}  {one} end", f"{one}{one}."]
    yield from (text for text in texts if not any(one in text for one in control))


def _pieces(proto: Any, ids: list[int]) -> str:
    """Return the first pieces of some, as they stand."""
    return short_repr(" ".join(proto.pieces[number].piece for number in ids[:SHOWN]))
