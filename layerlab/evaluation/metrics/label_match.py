"""Answers that are labels of a list, found wherever they stand in an output."""

from collections.abc import Hashable, Iterable, Set

from layerlab.evaluation.metrics.mark import Mark

# The letters of an answer sheet as wide characters: Ａ is U+FF21, A is U+0041.
_NARROW = {wide: wide - 0xFEE0 for wide in range(ord("Ａ"), ord("Ｚ") + 1)}


def labels_in(output: str, options: Iterable[str]) -> set[str]:
    """Return the options that occur in an output as substrings.

    An option that stands inside another one is found with it. Full-width letters count as letters.

    Source: fei23, the judging of choices and label sets.
    Differs: full-width letters are normalized.

    Example:
        >>> labels_in("答案是Ｂ。", "ABCD")
        {'B'}
    """
    text = output.translate(_NARROW)
    return {option for option in options if option in text}


def only_label(output: str, options: Iterable[str], gold: str) -> Mark:
    """Score 1 if the gold label alone occurs in an output, else 0; no label is an abstention.

    Source: fei23, single-label choices.

    Example:
        >>> only_label("B", "ABCD", "B"), only_label("A or B", "ABCD", "B").score
        (Mark(score=1.0, abstained=False), 0.0)
    """
    found = labels_in(output, options)
    return Mark(float(found == {gold}), not found)


def set_f1(found: Set[Hashable], gold: Set[Hashable]) -> float:
    """Return the F1 of two sets: 2 |both| / (|found| + |gold|).

    0 means they share nothing; 1 that they are equal, two empty ones too.

    Source: fei23, F1 of label sets.
    Unit: none.

    Example:
        >>> set_f1({264, 266}, {264})
        0.6666666666666666
    """
    if not found and not gold:
        return 1.0
    return 2 * len(found & gold) / (len(found) + len(gold))
