"""Record of a text by an engine: its tokens, and their log-probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from layerlab.errors import UserError
from layerlab.validation import short_repr

# What OpenAI-type servers return for a token that was not among those they looked at.
UNKNOWN = -9999.0
# What a difference of logits and the logarithm of their sum may lie above 0, in float32.
ABOVE = 1e-4


@dataclass(frozen=True, kw_only=True)
class TokenRecord:
    """The tokens of one text.

    Attributes:
        token_ids: of the whole text, its prompt included.
        logprobs: natural logarithm of the probability of each; None for those of which nothing
            was recorded, as the first, and what no model wrote.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]

    @property
    def start(self) -> int:
        """Return the place of the first token of which something is compared.

        What stands at the very beginning follows on nothing, whatever was recorded of it.
        """
        recorded = (at for at, one in enumerate(self.logprobs) if one is not None)
        return max(next(recorded), 1)


def make_record(token_ids: Any, logprobs: Any, vocabulary: int, holder: str) -> TokenRecord:
    """Check what was read of a text.

    Args:
        token_ids: of the whole text.
        logprobs: as many, the first of them None.
        vocabulary: how many tokens the model knows.
        holder: of both, in words.

    Raises:
        UserError: they are something else.
    """
    for given, name in ((token_ids, "token ids"), (logprobs, "log-probabilities")):
        if not isinstance(given, Sequence) or isinstance(given, str):
            raise UserError(f"the {name} of {holder} are {short_repr(given)}; expected a list")
    if len(token_ids) != len(logprobs):
        raise UserError(
            f"{holder} has {len(token_ids)} tokens and {len(logprobs)} log-probabilities; expected "
            "one log-probability a token, null for those that have none"
        )
    for token in token_ids:
        if not isinstance(token, int) or isinstance(token, bool):
            raise UserError(
                f"{holder} has the token id {short_repr(token)}; expected whole numbers"
            )
        if not 0 <= token < vocabulary:
            raise UserError(
                f"{holder} has token {short_repr(token)}, the model knows {vocabulary} from 0: is"
                " it the model that was asked?"
            )
    for position, one in enumerate(logprobs):
        if one is not None:
            _check_logprob(one, f"log-probability {position} of {holder}")
    if all(one is None for one in logprobs[1:]):
        raise UserError(f"{holder} has no log-probability of a token that follows another")
    return TokenRecord(
        token_ids=tuple(token_ids),
        logprobs=tuple(None if one is None else float(one) for one in logprobs),
    )


def _check_logprob(given: Any, holder: str) -> None:
    number = isinstance(given, int | float) and not isinstance(given, bool)
    if not number or given != given:
        raise UserError(f"{holder} is {short_repr(given)}; expected a number")
    if given > ABOVE:
        raise UserError(
            f"{holder} is {short_repr(given)}, above 0: expected natural logarithms of"
            " probabilities"
        )
    if given <= UNKNOWN:
        raise UserError(
            f"{holder} is {short_repr(given)}: servers write {UNKNOWN:g} where they know none;"
            " write null there, or record it again"
        )


def check_tokens(
    records: Sequence[TokenRecord], pieces: Sequence[Sequence[int]], name: str
) -> None:
    """Refuse records of other tokens than those of a text.

    Args:
        pieces: token ids of each text.
        name: of what was recorded.

    Raises:
        UserError: there are more or fewer, or others.
    """
    if len(records) != len(pieces):
        raise UserError(
            f"{name} records {len(records)} texts, and {len(pieces)} were given; give the texts"
            " that were recorded, or none: the record has their tokens"
        )
    for number, (record, piece) in enumerate(zip(records, pieces, strict=True), 1):
        theirs, own = record.token_ids, tuple(map(int, piece))
        if len(theirs) != len(own):
            raise UserError(
                f"text {number} of {name} has {len(theirs)} tokens, the text that was given has "
                f"{len(own)}; give the text that was recorded, or none"
            )
        for position, (one, other) in enumerate(zip(theirs, own, strict=True)):
            if one != other:
                raise UserError(
                    f"text {number} of {name} has token {one} at {position}, the text that was "
                    f"given has {other}; give the text that was recorded, or none"
                )


def check_lengths(records: Sequence[TokenRecord], most: int | None, name: str, model: str) -> None:
    """Refuse records of texts that are longer than the model can read.

    Args:
        most: tokens that it can read at once; None for any number.
        name: of what was recorded.
        model: its name.

    Raises:
        UserError: one is.
    """
    for number, record in enumerate(records, 1):
        if most is not None and len(record.token_ids) > most:
            raise UserError(
                f"text {number} of {name} has {len(record.token_ids)} tokens, the context of "
                f"{model} is {most}; record texts of {most} tokens at the most"
            )
