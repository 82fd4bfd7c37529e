"""Quality filters of documents: broken characters, symbols, characters that repeat."""

import re
from collections import Counter

import numpy as np

from layerlab.data.cleaning.ngrams import DENSE
from layerlab.data.cleaning.repetition_filters import repeated_shares
from layerlab.recipes.adaptation_sections import CleanSection

# Characters of a run that may not stand again: with ten, the formulas of a language do not count.
RUN = 10
# What a decoder puts in place of what it cannot read, and controls that move no cursor.
_BROKEN = re.compile("[\ufffd\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]")
# A character of a script without spaces takes the marks behind it along, as a word does.
_WORD = re.compile(rf"[{DENSE}][^\w\s]*|[^\s{DENSE}]+")
# In texts that are kept as tokens, marks stand alone; they are no words.
_MARK = re.compile(r"[.,;:!?'\"`()\[\]–—-]{1,2}")
_LETTER = re.compile(r"[^\W\d_]")
_SYMBOL = re.compile(r"#|\.{3}|…+")
_BULLET = ("•", "‣", "▪", "◦", "●", "■", "*", "-")
_ELLIPSIS = ("...", "…")


def low_quality(text: str, limits: CleanSection = CleanSection()) -> tuple[str, str] | None:
    """Return the first limit that a text exceeds, as a reason and in words; else None.

    A share of 1 (of words with a letter: 0) sets no limit. Not taken over are the source's limits
    that hold for English alone: stop words, and the length of words and documents in words.

    Source: rae21, appendix A1.1 (symbols, words, lines). Differs: of scripts without spaces each
        character is a word; marks that stand alone are none. The other limits are Own.

    Example:
        >>> low_quality("=" * 80)
        ('symbols', 'words with a letter 0.00 < 0.80')
        >>> low_quality("A contract is made by an offer and its acceptance.")
    """
    reason = _broken_characters(text, limits)
    if reason:
        return "broken", reason
    reason = _words(text, limits) or _lines(text, limits)
    if reason:
        return "symbols", reason
    reason = _characters(text, limits)
    return ("repetition", reason) if reason else None


def _broken_characters(text: str, limits: CleanSection) -> str | None:
    share = len(_BROKEN.findall(text)) / max(1, len(text))
    if share > limits.max_broken_ratio:
        return f"broken or control characters {share:.3f} > {limits.max_broken_ratio:.3f}"
    return None


def _words(text: str, limits: CleanSection) -> str | None:
    found = Counter(_WORD.findall(text))
    words = {word: count for word, count in found.items() if not _MARK.fullmatch(word)}
    total = max(1, sum(words.values()))
    share = sum(count for word, count in words.items() if _LETTER.search(word)) / total
    if share < limits.min_word_ratio:
        return f"words with a letter {share:.2f} < {limits.min_word_ratio:.2f}"
    share = len(_SYMBOL.findall(text)) / total
    if min(1.0, share) > limits.max_symbol_ratio:  # a limit of 1 is none
        return f"# and ellipses to words {share:.2f} > {limits.max_symbol_ratio:.2f}"
    return None


def _lines(text: str, limits: CleanSection) -> str | None:
    lines = [line for one in text.splitlines() if (line := one.strip())]
    share = sum(line.startswith(_BULLET) for line in lines) / max(1, len(lines))
    if share > limits.max_bullet_ratio:
        return f"lines that begin with a bullet {share:.2f} > {limits.max_bullet_ratio:.2f}"
    share = sum(line.endswith(_ELLIPSIS) for line in lines) / max(1, len(lines))
    if share > limits.max_ellipsis_ratio:
        return f"lines that end in an ellipsis {share:.2f} > {limits.max_ellipsis_ratio:.2f}"
    return None


def _characters(text: str, limits: CleanSection) -> str | None:
    plain = "".join(text.split())
    found = np.frombuffer(plain.encode("utf-32-le", "surrogatepass"), np.uint32)
    (share,) = repeated_shares(found.astype(np.uint64), np.ones(len(found), np.int64), [RUN])
    if share > limits.max_repeated_ratio:
        return f"repeated runs of {RUN} characters {share:.2f} > {limits.max_repeated_ratio:.2f}"
    return None
