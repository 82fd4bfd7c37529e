"""Score of one answer, and how much of it is read for that."""

from collections.abc import Mapping
from typing import Any, NamedTuple

# Characters of a written answer that are marked: the first so many, and so many more for each token
# that it may have. Text has four to a token, and no token of a sound vocabulary hundreds.
MARKED, MARKED_PER_TOKEN = 1024, 16


def answer_limit(options: Mapping[str, Any]) -> int:
    """Return how many tokens an answer may have, by a task's options of generation.

    Example:
        >>> answer_limit({"max_gen_toks": 8}), answer_limit({})
        (8, 256)
    """
    names = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
    given = (options[name] for name in names if options.get(name) is not None)
    return int(next(given, 256))


def marked_length(tokens: int) -> int:
    """Return how many characters of an answer are marked that may have so many tokens.

    Example:
        >>> marked_length(1024)
        17408
    """
    return MARKED + MARKED_PER_TOKEN * tokens


class Mark(NamedTuple):
    """A score, and whether the model gave an answer at all.

    Attributes:
        score: 1 is full marks.
        abstained: nothing in the output could be read as an answer; its score is low for that.
    """

    score: float
    abstained: bool = False
