"""Length of a text in a tokenizer's tokens, counted in the ways of papers."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerFast

from layerlab.tokenization.load import engine
from layerlab.tokenization.word_counts import check_texts

# Texts that are encoded at once, and their characters, of which each may take 200 bytes meanwhile.
BATCH, CHARACTERS = 4096, 1 << 19


@dataclass(frozen=True)
class Compression:
    """Sizes of the same texts.

    Attributes:
        bytes: of UTF-8.
    """

    texts: int
    characters: int
    bytes: int
    tokens: int

    @property
    def per_character(self) -> float:
        """Return the tokens per character; above 1 a character takes several tokens.

        Source: Own; what the tables of pangu23 and others call a compression rate agrees with it.
        Unit: tokens per character.
        """
        return self.tokens / self.characters

    @property
    def per_byte(self) -> float:
        """Return the tokens per byte of UTF-8: 1 where every byte is a token of its own.

        Unit: tokens per byte.
        """
        return self.tokens / self.bytes

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers."""
        return {
            **vars(self),
            "tokens_per_character": self.per_character,
            "tokens_per_byte": self.per_byte,
            "bytes_per_token": self.bytes / self.tokens,
        }


def compression(tokenizer: PreTrainedTokenizerFast, texts: Iterable[str]) -> Compression:
    """Measure a tokenizer on texts, which are read once; no special tokens are put around them.

    Example:
        >>> from layerlab import builtin
        >>> from layerlab.tokenization.load import load_tokenizer
        >>> tokenizer = load_tokenizer(str(builtin.path("llama")))
        >>> compression(tokenizer, ["once upon a time"]).characters
        16
    """
    machine = engine(tokenizer)
    count = characters = size = tokens = 0
    for batch in batches(texts):
        found = machine.encode_batch_fast(batch, add_special_tokens=False)
        count += len(batch)
        characters += sum(map(len, batch))
        size += sum(len(text.encode()) for text in batch)
        tokens += sum(map(len, found))
    return Compression(count, characters, size, tokens)


def batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Yield texts in groups, none of which is empty; texts without a character are left out."""
    batch, size = list[str](), 0
    for text in filter(None, check_texts(texts)):
        batch.append(text)
        size += len(text)
        if len(batch) == BATCH or size >= CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
