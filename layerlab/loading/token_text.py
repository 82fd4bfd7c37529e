"""Shows tokens as text, also where a character spans several tokens.

A tokenizer that cuts bytes leaves no token with a whole Chinese character or emoji in it. Here the
character stands at its last token, and the tokens before it are marked as parts of one.
"""

import re
from functools import cache

from tokenizers import pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from layerlab.loading.model import LoadedModel

# Unicode's sign for a letter that is not there: nothing but the part of a character.
PART = "\u25cc"
_UNKNOWN = "\ufffd"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# How many bytes a character may have.
_MOST = 4


def token_strings(subject: LoadedModel, tokens: Tensor) -> list[str]:
    """Return each token of a sequence as text, or its number where there is no tokenizer.

    Without the marks of parts, what is given back joins to the text.

    Args:
        tokens: that follow one another; of a choice of them, spell all and choose then.
    """
    tokenizer = subject.tokenizer
    if tokenizer is None:
        return [str(token) for token in tokens.tolist()]
    return join_bytes([_content(tokenizer, token) for token in tokens.tolist()])


def alone(subject: LoadedModel, tokens: Tensor) -> list[str]:
    """Return unrelated tokens as text; a part of a character as its bytes."""
    return [token_strings(subject, token[None])[0] for token in tokens]


def join_bytes(contents: list[bytes]) -> list[str]:
    r"""Decode bytes cut anywhere: each character where it ends, stray bytes by number.

    Example:
        >>> join_bytes([b"a\xc3", b"\xa9", b"\xa9"])
        ['a◌', 'é', '⟨A9⟩']
    """
    joined = b"".join(contents)
    owners = [number for number, content in enumerate(contents) for _ in content]
    found = ["" for _ in contents]
    start = 0
    while start < len(joined):
        character, size = _next(joined[start : start + _MOST])
        last = owners[start + size - 1]
        for owner in sorted({*owners[start : start + size]} - {last}):
            found[owner] += PART
        found[last] += character
        start += size
    return found


def _next(content: bytes) -> tuple[str, int]:
    """Return the character at the beginning, and how many bytes it has."""
    for size in range(1, len(content) + 1):
        try:
            return content[:size].decode(), size
        except UnicodeDecodeError:
            continue
    return f"⟨{content[0]:02X}⟩", 1


def _content(tokenizer: PreTrainedTokenizerBase, token: int) -> bytes:
    """Return the bytes or text of a token.

    Of one that is no text by itself, the bytes that it is made of.
    """
    text, mark = str(tokenizer.decode([token])), tokenizer.convert_ids_to_tokens(token)
    if isinstance(mark, bytes):
        return mark
    mark = str(mark)
    if _UNKNOWN in text:
        if byte := _BYTE.fullmatch(mark):
            return bytes([int(byte[1], 16)])
        if all(letter in _letters() for letter in mark):
            return bytes(_letters()[letter] for letter in mark)
    # SentencePiece drops the space in front of a text, and each token is a text of its own here.
    if mark.startswith("\u2581") and not text.startswith(" "):
        text = f" {text}"
    return text.encode("utf-8", "surrogatepass")


@cache
def _letters() -> dict[str, int]:
    """Return the byte that each letter of a byte-level vocabulary stands for.

    A byte that is printable in Latin-1 is its own letter; the others follow from U+0100 on.
    """
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    own = [byte for byte in range(256) if chr(byte) in alphabet]
    others = [byte for byte in range(256) if chr(byte) not in alphabet]
    return {chr(byte): byte for byte in own} | {
        chr(256 + number): byte for number, byte in enumerate(others)
    }
