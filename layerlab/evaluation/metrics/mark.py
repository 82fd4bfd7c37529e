"""What one answer earned."""

from typing import NamedTuple


class Mark(NamedTuple):
    """A score, and whether the model gave an answer at all.

    Attributes:
        score: 1 is full marks.
        abstained: nothing in the output could be read as an answer; its score is low for that.
    """

    score: float
    abstained: bool = False
