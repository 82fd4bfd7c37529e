"""How large a corpus is, as a plan has to know it."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class CorpusSize:
    """What a plan has to know of a corpus.

    Attributes:
        vocab: of its tokenizer.
        tokens: that one pass trains on, by the block size.
        digest: of the tokens, the tokenizer and how both are cut.
    """

    vocab: int
    tokens: int
    digest: str
