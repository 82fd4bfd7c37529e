"""Answers compared by their characters, in whatever order they stand."""

from collections import Counter


def character_f1(prediction: str, reference: str) -> float:
    """Return the F1 of the letters and digits of two texts, each as often as it occurs.

    F1 = 2 m / (p + r), with m characters shared, p in the prediction, r in the reference.

    0 means none is shared; 1 that both hold the same characters, or neither holds any.
    Punctuation, spaces and case do not count.

    Source: fei23, reading comprehension (rc-F1).
    Unit: none.

    Example:
        >>> character_f1("21万元", "21 万元。"), character_f1("", "21万元")
        (1.0, 0.0)
    """
    found, gold = _characters(prediction), _characters(reference)
    if not found or not gold:
        return float(found == gold)
    return 2 * (found & gold).total() / (found.total() + gold.total())


def _characters(text: str) -> Counter[str]:
    return Counter(one for one in text.lower() if one.isdigit() or one.isalpha())
