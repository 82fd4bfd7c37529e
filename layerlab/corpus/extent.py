"""Size of a corpus, as a plan has to know it."""

from dataclasses import dataclass

from layerlab.errors import UserError


@dataclass(frozen=True, kw_only=True)
class CorpusSize:
    """The size of a corpus, as a plan needs it.

    Attributes:
        vocab: of its tokenizer.
        tokens: that one pass trains on, by the block size; None of a text in shards, which nobody
            has read.
        digest: of the tokens, the tokenizer and how both are cut.
    """

    vocab: int
    tokens: int | None
    digest: str

    def of_passes(self, passes: float) -> float:
        """Return the tokens of so many passes.

        Raises:
            UserError: the text is in shards.
        """
        if self.tokens is None:
            raise UserError(
                "how many tokens a text in shards has (data.shard_bytes) is not known before it is "
                "read; write train.tokens or train.max_steps in place of train.num_train_epochs"
            )
        return passes * self.tokens
