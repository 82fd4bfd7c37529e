"""F1 over answers of several parts, where a part that is nearly right counts in part."""

from collections.abc import Mapping, Sequence

from layerlab.evaluation.metrics.character_f1 import character_f1


def soft_f1(found: Mapping[str, str], gold: Mapping[str, str]) -> float:
    """Return the F1 over named parts, as the entities of a sentence by their types.

    F1 = 2 s / (p + r), with s the sum of the character F1 over the names in both, and p, r names
    found and wanted.

    0 means no named part shares a character; 1 that all agree, or nothing was found or wanted.

    Source: fei23, soft-F1 of entities.
    Unit: none.

    Example:
        >>> soft_f1({"时间": "5月", "地点": "北京"}, {"时间": "5月"})
        0.6666666666666666
    """
    if not found and not gold:
        return 1.0
    shared = sum(character_f1(found[name], gold[name]) for name in sorted({*found} & {*gold}))
    return 2 * shared / (len(found) + len(gold))


def soft_f1_in_order(found: Sequence[str], gold: Sequence[str]) -> float:
    """Return the F1 over parts in order: the first found against the first wanted, and so on.

    F1 = 2 s / (p + r), as `soft_f1`, with s summed over the places that both have.

    Source: fei23, soft-F1 of trigger words.
    Unit: none.

    Example:
        >>> soft_f1_in_order(["查扣", "退给"], ["查扣", "退给"])
        1.0
    """
    if not found and not gold:
        return 1.0
    pairs = zip(found, gold, strict=False)
    return 2 * sum(character_f1(*pair) for pair in pairs) / (len(found) + len(gold))
