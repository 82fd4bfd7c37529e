"""New tokens spelled in the older tokens of a base tokenizer."""

import re
from collections.abc import Iterable, Mapping

from transformers import PreTrainedTokenizerFast

from layerlab.tokenization.load import engine

BYTE = re.compile(r"(<0x[0-9A-Fa-f]{2}>)")


def token_strings(tokenizer: PreTrainedTokenizerFast) -> dict[int, str]:
    """Return the string of every id."""
    return {number: token for token, number in tokenizer.get_vocab().items()}


def spell_tokens(
    base: PreTrainedTokenizerFast, new: PreTrainedTokenizerFast, ids: Iterable[int]
) -> list[list[int]]:
    """Return the base tokens that each new token is made of; none where it cannot be written.

    A token of the vocabulary goes, as the string that it is, through the merges of the base alone.
    Decoding it first would lose tokens that are no whole characters, and the rules that part a text
    into words would cut where the new token does not. A token that was added beside the vocabulary
    is plain text, and is encoded as one.
    """
    speller = Speller(base)
    strings, added = token_strings(new), new.get_added_vocab()
    return [
        speller.text(strings[number])
        if strings[number] in added
        else speller.piece(strings[number])
        for number in ids
    ]


class Speller:
    """Writes strings in the tokens of one tokenizer."""

    def __init__(self, base: PreTrainedTokenizerFast) -> None:
        """Take the tokenizer's engine apart."""
        self.engine = engine(base)
        self.vocab: Mapping[str, int] = self.engine.get_vocab(with_added_tokens=True)
        model = self.engine.model
        self.bytes = bool(getattr(model, "byte_fallback", False))
        self.unknown = self.vocab.get(getattr(model, "unk_token", None) or "", -1)

    def piece(self, token: str) -> list[int]:
        """Return the base tokens of a string of the vocabulary, of byte symbols or characters."""
        found: list[int] = []
        # There a byte that is part of no known character has a name of six letters.
        for part in filter(None, BYTE.split(token) if self.bytes else [token]):
            if BYTE.fullmatch(part) and self.bytes and part in self.vocab:
                found.append(self.vocab[part])
            else:
                found += [one.id for one in self.engine.model.tokenize(part)]
        return [number for number in found if number != self.unknown]

    def text(self, content: str) -> list[int]:
        """Return the base tokens of a plain text."""
        found = self.engine.encode(content, add_special_tokens=False).ids
        return [number for number in found if number != self.unknown]
