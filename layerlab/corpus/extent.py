"""How large a corpus is, as a plan has to know it."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class CorpusSize:
    """The size of a corpus, as a plan needs it.

    Attributes:
        vocab: of its tokenizer.
        tokens: that one pass trains on, by the block size.
        digest: of the tokens, the tokenizer and how both are cut.
    """

    vocab: int
    tokens: int
    digest: str
