"""The option that a written answer chooses, or none: an abstention is never a guess.

Differs: FinanceIQ's and CMMLU's own code chooses an option at random where it finds none, so two
runs of it differ. Here an answer without a choice counts as wrong, and is counted.
"""

import re
import unicodedata

# A letter is no part of a word, and "A股" or "B2B" name no option.
_ALONE = r"(?<![A-Za-z0-9])([{letters}])(?![A-Za-z0-9股类])"
# Nor does the first of several, "A、B" or "AB", name one.
_ONE = r"([{letters}])(?![A-Za-z0-9])(?!\s*(?:[、,和及与]|and|or)\s*[{letters}](?![A-Za-z0-9]))"
_SAID = (
    r"答案(?:选项)?(?:应该|应当)?(?:是|为|选)?:?(?:选项|选)?\s*\(?" + _ONE,
    r"(?:故|应|因此|所以)?选择?(?:答案|选项)?:?\s*\(?" + _ONE,
    r"(?i:answer)(?:\s+is)?(?:\s+therefore)?\s*:?\s*\(?" + _ONE,
)
_FIRST = r"\(?" + _ONE + r"(?=$|[\s.,:;)。、])"


def chosen(output: str, letters: str, *, reasoned: bool = False) -> str | None:
    """The letter of the option that an output chooses.

    In this order: the letter that the output begins with; the one that it calls the answer; the
    only one that occurs.

    Source: Own.

    Args:
        output: as the model wrote it; full-width letters are read as plain ones.
        letters: of all options, as "ABCD".
        reasoned: the output reasons first, so that its last statement counts and not its first.

    Returns:
        A letter, or None where the output abstains or names several.

    Example:
        >>> chosen("Ｂ", "ABCD"), chosen("答案是：C。", "ABCD"), chosen("A和B都对", "ABCD")
        ('B', 'C', None)
    """
    plain = unicodedata.normalize("NFKC", output).strip()
    first = re.match(_FIRST.format(letters=letters), plain)
    if first and not reasoned:
        return first.group(1)
    for pattern in _SAID:
        found = re.findall(pattern.format(letters=letters), plain)
        if found:
            return str(found[-1 if reasoned else 0])
    alone = set(re.findall(_ALONE.format(letters=letters), plain))
    return alone.pop() if len(alone) == 1 else None
