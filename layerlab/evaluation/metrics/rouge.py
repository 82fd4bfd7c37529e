"""ROUGE: how much of a reference text comes back in a prediction, in its words."""

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Literal

from layerlab.evaluation.metrics.segmentation import JIEBA, Segmentation

RougeN = Literal["1", "2", "L"]
Counted = Literal["distinct", "every"]


def rouge(
    prediction: str,
    reference: str,
    *,
    kind: RougeN = "L",
    segment: Segmentation = JIEBA,
    counted: Counted = "distinct",
) -> float:
    """Return the F score of the words, word pairs or longest common subsequence of two texts.

    F = 2 m / (p + r), with m shared units, p in the prediction and r in the reference.
    For L, m is the length of the longest common subsequence, p and r count words.

    0 means nothing is shared, or one text has no such unit; 1 that the units are the same.

    Source: lin04, sections 2 and 3, with equal weights of precision and recall.
    Differs: "distinct" counts an n-gram once however often it stands there, as the Chinese
    benchmarks do; "every" is the source's count. L has no such choice.
    Unit: none; the benchmarks print it times 100.

    Args:
        segment: cuts the texts; its name belongs beside the score.

    Example:
        >>> from layerlab.evaluation.metrics.segmentation import SPACED
        >>> rouge("the cat sat", "the cat slept", kind="1", segment=SPACED)
        0.6666666666666666
    """
    ours, theirs = segment(prediction), segment(reference)
    if kind == "L":
        return _f(common_subsequence(ours, theirs), len(ours), len(theirs))
    units = set if counted == "distinct" else list
    found, gold = (Counter(units(_grams(words, int(kind)))) for words in (ours, theirs))
    return _f((found & gold).total(), found.total(), gold.total())


def common_subsequence(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """Return the length of the longest common subsequence of two sequences.

    Source: hyyro04: one bit for each element of the shorter, one addition for each of the other.
    Unit: elements.

    Example:
        >>> common_subsequence("abcd", "acxd")
        3
    """
    a, b = sorted((a, b), key=len)
    places: dict[Hashable, int] = {}
    for index, element in enumerate(a):
        places[element] = places.get(element, 0) | 1 << index
    mask = (1 << len(a)) - 1
    unmatched = mask
    for element in b:
        hit = unmatched & places.get(element, 0)
        unmatched = ((unmatched + hit) | (unmatched - hit)) & mask
    return len(a) - unmatched.bit_count()


def _grams(words: Sequence[str], length: int) -> list[tuple[str, ...]]:
    return [tuple(words[start : start + length]) for start in range(len(words) - length + 1)]


def _f(shared: int, found: int, gold: int) -> float:
    return 2 * shared / (found + gold) if found and gold else 0.0
