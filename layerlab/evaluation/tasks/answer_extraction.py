"""The option that a written answer chooses, or none: an abstention is never a guess.

Differs: FinanceIQ's and CMMLU's own code chooses an option at random where it finds none, so two
runs of it differ. Here an answer without a choice counts as wrong, and is counted.
"""

import re

from layerlab.data.normal_form import normal_form

# A letter is no part of a word, and "A股" or "B2B" name no option.
_BEFORE, _AFTER = "(?<![A-Za-z0-9])", "(?![A-Za-z0-9股类])"
# Nor does the article of "A person"; what follows an option is none of what an article stands for.
_FOLLOWS = (
    "is|was|are|because|since|as|for|in|on|by|which|that|and|or|but|so|if|not|would|will|should"
    "|must|can|cannot|could|may|might|has|does|fits|holds|seems|looks|means"
)
_ARTICLE = rf"(?!(?<=A)[ \t]+(?!(?:{_FOLLOWS})\b)[a-z])"
_LETTER = f"{_BEFORE}([{{letters}}]){_AFTER}{_ARTICLE}"
# Several in a row are written as "A、B" before anything is looked for.
_SEVERAL = (
    rf"{_BEFORE}([{{letters}}])\s*\)?(?:选?项)?\s*(?:[、/&和及与跟或]|以及|或者|还是|\b(?:and|or|nor)\b)"
    r"\s*(?:选择?)?(?:选项)?\s*\(?(?=[{letters}](?![A-Za-z0-9]))"
)
# The first of several, "A、B", "A, B" or "AB", is not the one.
_ONE = r"([{letters}])(?![A-Za-z0-9])(?!\s*[、,]\s*[{letters}](?![A-Za-z0-9]))" + _ARTICLE
_SAID = (
    r"答案(?:选项)?(?:应该|应当)?(?:是|为|选)?:?(?:选项|选)?\s*\(?" + _ONE,
    r"(?:故|应|因此|所以)?选择?(?:答案|选项)?:?\s*\(?" + _ONE,
    r"(?i:answer)(?:\s+is)?(?:\s+therefore)?\s*:?\s*\(?" + _ONE,
)
_FIRST = r"\(?" + _ONE + r"(?=$|[\s.,:;)。、])"
_LISTED = r"\(?[{letters}](?![A-Za-z0-9])(?:、[{letters}](?![A-Za-z0-9])){{0,25}}\)?"
# What is said not to be the answer: "不应选A", "排除A和B", "除了A都对", "not A"; "不得不选A" says
# that it is.
_DENIED = (
    r"(?:(?<!得)不(?:一定|太|再)?(?:应该?当?|该|能够?|可以?|可能|会|要|宜)?"
    r"(?:选择?|是|为|填)?|[并而绝]?非|别选|勿选|没有?选|排除[了掉]?)"
    rf"(?:答案|选项)?[:\s]*{_LISTED}",
    r"(?i:\bnot|n't|\bcannot|\bneither|\bnor|\brather than|\binstead of|\bexclud\w+"
    r"|\beliminat\w+|\brul(?:e|ed|ing) out)(?:\s+(?:be|choose|pick|select|option|the|answer|is))*"
    rf"\s+{_LISTED}",
    rf"除了?(?:选项)?{_LISTED}(?:选?项)?(?:[以之]?外)?[,\s]*(?:其[他它余]|别|剩下)?的?(?:选?项)?"
    r"(?:[都均全皆]|的?说法)+(?:是|为)?(?:对|正确|准确|符合|成立|合理)",
    rf"(?i:\b(?:all|every\w*|any\w*)(?: options?)? (?:except|but)(?: for)?(?: option)?)\s+{_LISTED}"
    r"\s+(?:is|are)\s+(?:right|correct|true)",
    rf"{_BEFORE}{_LISTED}(?:选?项)?(?:[都均也是]|的?说法)*"
    r"(?:\s*(?:不(?:对|正确|准确|符合|成立|合理|选|能选|应选|该选|可能)|错|有误)"
    r"|\s+(?:is|are)\s+(?:not\b|wrong|incorrect|false)|\s+(?:isn't|aren't|cannot|can't)\b)",
)


def extract_letter(output: str, letters: str, *, reasoned: bool = False) -> str | None:
    """Extract the letter of the option that an output chooses.

    In this order: the letter that the output begins with; the one that it calls the answer; the
    only one that occurs. Letters of which it says that they are not the answer count for nothing.

    Args:
        output: as the model wrote it; full-width letters are read as plain ones.
        letters: of all options, as "ABCD".
        reasoned: the output reasons first, so that its last statement counts and not its first.

    Returns:
        A letter, or None where the output abstains or names several.

    Example:
        >>> outputs = ("Ｂ", "答案是：C。", "A和B都对", "不选A，选B", "A person would choose")
        >>> [extract_letter(output, "ABCD") for output in outputs]
        ['B', 'C', None, 'B', None]
    """
    plain = normal_form("NFKC", output).strip().replace("’", "'")
    # One of each run, for which no pattern has several ways to cut it in two.
    plain = re.sub(r"\s{2,}", lambda run: "\n" if run[0].strip(" \t") else " ", plain)
    plain = re.sub(_SEVERAL.format(letters=letters), r"\1、", plain)
    for pattern in _DENIED:
        plain = re.sub(pattern.format(letters=letters), "#", plain)
    first = re.match(_FIRST.format(letters=letters), plain)
    if first and not reasoned:
        return first.group(1)
    for pattern in _SAID:
        found = re.findall(pattern.format(letters=letters), plain)
        if found:
            return str(found[-1 if reasoned else 0])
    alone = set(re.findall(_LETTER.format(letters=letters), plain))
    return alone.pop() if len(alone) == 1 else None
