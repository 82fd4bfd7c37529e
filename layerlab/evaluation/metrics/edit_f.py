"""Corrections of a sentence, compared as edits of its characters."""

import difflib
from typing import NamedTuple

Edit = tuple[int, int, str]
# Where a prediction is longer than the reference by more than this, its end is cut off.
EXCESS = 5
BETA = 0.5


class EditCount(NamedTuple):
    """Counts of edits that are right, made without need, and missed."""

    right: int
    needless: int
    missed: int


def edits(source: str, target: str) -> set[Edit]:
    """Return what turns one sentence into another: spans of `source` and their new text.

    Source: Own, on difflib's matching.

    Example:
        >>> sorted(edits("指控实施", "指控事实"))
        [(2, 2, '事'), (3, 4, '')]
    """
    matcher = difflib.SequenceMatcher(None, source, target, autojunk=False)
    return {
        (start, end, target[first:last])
        for what, start, end, first, last in matcher.get_opcodes()
        if what != "equal"
    }


def edit_count(source: str, prediction: str, reference: str) -> EditCount:
    """Compare the edits of a prediction with those of the reference.

    Edits of equal span and text are right.

    White space does not count; a prediction ends at most five characters after the reference's
    length, as in the source; an empty one is read as the words for "no content".

    Source: fei23, document proofreading.
    Differs: edits come from difflib and not from an aligner with a lexicon of words, sounds and
    shapes, and traditional characters are not rewritten: an approximation.
    """
    texts = (source, prediction, reference)
    source, prediction, reference = ("".join(text.split()) for text in texts)
    prediction = prediction[: len(reference) + EXCESS] or "无内容"
    made, wanted = edits(source, prediction), edits(source, reference)
    right = len(made & wanted)
    return EditCount(right, len(made) - right, len(wanted) - right)


def edit_f(count: EditCount) -> float:
    """Return the F score of corrections, in which precision weighs more than recall.

    F = (1 + b^2) t / ((1 + b^2) t + b^2 m + n), with t right, n needless and m missed edits.

    1 means every edit was made and no other, or none was wanted and none made; 0 that none of
    those made was wanted.

    Source: fei23, F0.5.
    Unit: none.

    Example:
        >>> edit_f(EditCount(1, 0, 0)), edit_f(EditCount(0, 1, 1))
        (1.0, 0.0)
    """
    square = BETA**2
    weighed = (1 + square) * count.right
    total = weighed + square * count.missed + count.needless
    return weighed / total if total else 1.0
