"""Reads a SentencePiece `.model`, and refuses what no fast tokenizer can do the same way."""

from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from layerlab.errors import UserError
from layerlab.system.files import read_whole
from layerlab.validation import short_repr

SPACE = "▁"
NEEDED = ("sentencepiece", "google.protobuf")
UNIGRAM, BPE, CHAR = 1, 2, 4
NORMAL, UNKNOWN, CONTROL, DEFINED, UNUSED = 1, 2, 3, 4, 5
# A converter looks at every way to cut a piece in two, and copies both parts. The longest piece of
# InternLM has 128 characters, and the pieces of a real vocabulary of 256,000 about 2 million.
LONGEST, TOTAL = 1_024, 4_000_000


def read_model(path: Path) -> Any:
    """Return the message in a `.model` whose pieces are of a size that can be converted.

    Raises:
        UserError: it is no such file, or its pieces are too long.
    """
    proto = _parse(path)
    if proto is None or not proto.pieces:
        raise UserError(
            f"{path} is no model of SentencePiece; expected what its trainer writes, or a folder "
            "with a tokenizer.json"
        )
    check_lengths(proto, path)
    return proto


def check_file(path: Path) -> None:
    """Refuse a `.model` whose pieces are too long to convert; another one is not for us to judge.

    Raises:
        UserError: names the file and the limit.
    """
    if not all(map(present, NEEDED)):
        return
    proto = _parse(path)
    if proto is not None:
        check_lengths(proto, path)


def present(package: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def _parse(path: Path) -> Any:
    """Return the message in a file, or None if there is none.

    Raises:
        UserError: the file cannot be read.
    """
    from google.protobuf.message import DecodeError
    from transformers.convert_slow_tokenizer import import_protobuf

    proto = import_protobuf().ModelProto()
    try:
        proto.ParseFromString(read_whole(path))
    except DecodeError:
        return None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; name another file") from None
    return proto


def check_lengths(proto: Any, path: Path) -> None:
    """Refuse pieces that take a converter longer than any real ones do.

    Raises:
        UserError: one is too long, or all are together.
    """
    lengths = [len(one.piece) for one in proto.pieces]
    if (most := max(lengths, default=0)) > LONGEST:
        raise UserError(
            f"{path} has a piece of {most:,} characters, number {lengths.index(most)}; expected "
            f"at most {LONGEST:,}"
        )
    if sum(lengths) > TOTAL:
        raise UserError(
            f"the pieces of {path} have {sum(lengths):,} characters together; expected at most "
            f"{TOTAL:,}"
        )


def check_kind(proto: Any, path: Path) -> None:
    """Refuse a model that no fast tokenizer can be for.

    Raises:
        UserError: says which setting or piece it is.
    """
    if reason := _obstacle(proto):
        raise UserError(
            f"{path} {reason}, which no fast tokenizer does; expected a BPE or a unigram model as "
            "SentencePiece trains it by itself"
        )
    times = Counter(one.piece for one in proto.pieces)
    double = next((piece for piece, count in times.items() if count > 1), None)
    if double is not None:
        raise UserError(
            f"{path} has the piece {short_repr(double)} twice; expected each piece once"
        )
    unknown = sum(one.type == UNKNOWN for one in proto.pieces)
    if unknown != 1:
        raise UserError(f"{path} has {unknown} pieces for what is unknown; expected one")


def _obstacle(proto: Any) -> str:
    """Return what about a model cannot be converted, in words; empty if nothing."""
    if proto.trainer_spec.model_type not in {UNIGRAM, BPE, CHAR}:
        return "cuts a text into whole words (model_type=word)"
    if proto.trainer_spec.treat_whitespace_as_suffix:
        return "has the space behind a word in the word's last piece (treat_whitespace_as_suffix)"
    if not proto.normalizer_spec.escape_whitespaces:
        return f"keeps spaces as they are (escape_whitespaces=false) and does not write {SPACE}"
    if proto.denormalizer_spec.precompiled_charsmap:
        return "changes characters back when it decodes (denormalizer_spec)"
    unused = next((one.piece for one in proto.pieces if one.type == UNUSED), None)
    if unused is not None:
        return f"has pieces that it never writes (UNUSED, the first is {short_repr(unused)})"
    return ""
