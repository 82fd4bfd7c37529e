"""Remarks on how a text was read, where numbers on it may say less than they seem to."""

from collections.abc import Hashable, Iterable
from typing import Any


def describe_text(read: Iterable[Hashable], *, fewest: int, samples: Any) -> list[str]:
    """Return remarks on what models have read that have a loss on it.

    Args:
        read: what tells the tokens of each model from those of another.
        fewest: sequences that one of them has read.
        samples: that were to be read, where that is a number.
    """
    remarks, models = [], list(read)
    if len(set(models)) > 1:
        remarks.append(
            "The models did not read the same tokens, as another tokenizer or a shorter context "
            "cuts the text otherwise: their losses per token are not comparable."
        )
    if models and isinstance(samples, int) and fewest < samples:
        remarks.append(f"The text is short: it has {fewest} of {samples} samples.")
    return remarks
