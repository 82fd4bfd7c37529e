"""Unicode's normal forms of any text, in time that grows as the text does."""

import re
import sys
import unicodedata
from functools import cache
from typing import Literal

# Marks that may follow a character; Unicode Standard Annex 15, section 13, stream-safe text.
MARKS, JOINER = 30, "\N{COMBINING GRAPHEME JOINER}"
STEP = 256


def normal_form(form: Literal["NFC", "NFD", "NFKC", "NFKD"], text: str) -> str:
    """Normalize a text; marks beyond the 30th on one character are kept apart from it.

    Putting n marks in their order takes n squared steps: a text of marks alone, of which the first
    20 KB take a second, would take days for 10 MB.

    Source: unicode15.

    Example:
        >>> normal_form("NFC", "e\u0301")
        'é'
        >>> len(normal_form("NFC", "e" + "\u0301\u0316" * 99_999)) > 199_000
        True
    """
    # No longer run of marks escapes a look at every so many-th character; shorter ones cost little.
    if not any(map(unicodedata.combining, text[::STEP])):
        return unicodedata.normalize(form, text)
    return unicodedata.normalize(form, _long().sub(rf"\1{JOINER}", text))


@cache
def _long() -> re.Pattern[str]:
    """Return the pattern of thirty marks in a row with another behind them."""
    marks = "".join(filter(unicodedata.combining, map(chr, range(0x300, sys.maxunicode))))
    return re.compile(f"([{marks}]{{{MARKS}}})(?=[{marks}])")
