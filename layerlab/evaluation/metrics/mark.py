"""What one answer earned, and how much of it is read for that."""

from typing import NamedTuple

# Characters of a written answer that are marked: the first so many, and so many more for each token
# that it may have. Text has four to a token, and no token of a sound vocabulary hundreds.
MARKED, MARKED_PER_TOKEN = 1024, 16


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
