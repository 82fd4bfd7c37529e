"""Texts of several clauses: each is said by the message that knows it, the rest stands.

A message may say one clause or several together, so a text is cut in every way. The best way leaves
the fewest words as they were; of those that leave as few, it is the one of the most clauses.
"""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from layerlab.report.i18n.template import fill

_SENTENCE = re.compile(r"(?<=[^\W\d_]{2}\.) (?=\S)")
# What stands between clauses.
_MARK = re.compile(r"(; |: |, and |, )")
# A list has another comma than clauses: its entries are a few words each, or numbers.
_LISTED, _COMMA = ", ", ","
# What a user types stands between backticks in every language; a number may follow.
NUMBERED = r"(?: [+-]?\d\S*)?"
TYPED = re.compile(f"`[^`]+`{NUMBERED}")
_ENTRY = re.compile(rf"[^\s\d]+(?: [^\s\d]+){{0,2}}|{TYPED.pattern}")
_NUMBER = re.compile(r"[\d.-]+")
_AND = " and "
_ALSO = re.compile(f"({_AND})")
# Amounts with their prefixes, which have no words of their own.
_AMOUNTS = re.compile(r"\d[\d.]*(?: [kMGT])?(?:, \d[\d.]*(?: [kMGT])?)*")
_BRACKETS = re.compile(r"( ?\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))")
_BRACKETED = "{value} ({note})"
_NUMBERED = re.compile(r"(.*\S) ([+-]?\d\S*)")
_WORD = re.compile(r"[^\W\d_]{2,}")
_PROSE = re.compile(r"\b[a-z]{2,}(?: [a-z]{2,}){3}\b")
# Full-width marks bring their own space.
_WIDE = re.compile(r" ?([（），。；：、]) ?")
# Clauses that one message may say.
_MOST = 8


class TextTranslator(Protocol):
    """A function that returns the translation of a text by itself, or None.

    `begun` asks for templates that begin with a word of their own, `strong` for those that say much
    beside what fills them.
    """

    def __call__(self, text: str, *, begun: bool = False, strong: bool = False) -> str | None: ...


class _Way(NamedTuple):
    """A way to say a text from one of its clauses on; of two the less is the better.

    Attributes:
        left: words that are said as they were.
        known: clauses that are known, below 0.
        unknown: clauses that are not.
    """

    left: int = 0
    known: int = 0
    unknown: int = 0
    text: str = ""

    def behind(self, given: str, translation: str, known: bool) -> "_Way":
        """Return this way with one more clause in front of it."""
        left, unknown = (
            self.left + _count_untranslated(given, translation),
            self.unknown + (not known),
        )
        return _Way(left, self.known - known, unknown, translation + self.text)


class Clauses:
    """Texts of several clauses in a language."""

    def __init__(self, look_up: TextTranslator, label: Callable[[str], str]):
        """Take the functions that translate a whole text and a mark."""
        self.known, self.label = look_up, label

    def translate(self, text: str) -> str:
        """Translate a text: as a whole where one message covers it, else in parts."""
        if (whole := self._whole(text)) is not None:
            return whole
        sentences = _SENTENCE.split(text)
        if len(sentences) == 1:
            return self._cut(text)
        translations = [self.translate(one) for one in sentences]
        return text if translations == sentences else tidy(" ".join(translations))

    def _whole(self, text: str) -> str | None:
        """Translate a text by one message that leaves no prose, with its full stop or without."""
        ways = []
        for given in dict.fromkeys((text.removesuffix("."), text)):
            if (translation := self.known(given, strong=True)) and not prose(translation):
                ways.append(translation + self.label(text[len(given) :]))
        return min(ways, key=lambda way: _count_untranslated(text, way), default=None)

    def _cut(self, text: str) -> str:
        """Translate a sentence, cut into clauses in the best way."""
        bare = text.removesuffix(".")
        entries = ["", *_split(_MARK, bare)]
        listed = all(map(_ENTRY.fullmatch, entries[1::2]))
        listed = listed or all(map(_NUMBER.fullmatch, entries[3::2]))
        comma = _LISTED if listed else _COMMA
        best = [_Way()]
        for index in range(len(entries) - 2, -1, -2):
            ways = self._ways(entries[index : index + 2 * _MOST], best[:_MOST], comma)
            best.insert(0, min(ways, key=lambda way: way[:3]))
        cut = tidy(best[0].text + self.label(text[len(bare) :])) if best[0].known else text
        return min(cut, self.known(text) or text, key=lambda way: _count_untranslated(text, way))

    def _ways(self, entries: list[str], best: list[_Way], comma: str) -> Iterator[_Way]:
        """Yield ways to translate clauses, each behind its mark.

        `best` are those from the next ones on.
        """
        listed = TYPED.fullmatch(entries[1]) is not None
        mark = self.label(comma if entries[0] == _LISTED and not listed else entries[0])
        for count, after in enumerate(best, 1):
            given = "".join(entries[1 : 2 * count])
            if (translation := self._together(entries[0], given, mark)) is not None:
                yield after.behind(given, translation, known=True)
            elif count == 1:
                inside = self._inside(given)
                yield after.behind(given, mark + inside, known=inside != given)

    def _together(self, before: str, text: str, mark: str) -> str | None:
        """Translate clauses by one message, with the mark before them or else alone."""
        if before and (translation := self.known(before + text, begun=True)) is not None:
            return translation
        translation = self.known(text)
        return None if translation is None else mark + translation

    def _inside(self, text: str) -> str:
        """Translate a clause that no message covers, in smaller parts."""
        return (
            self._translate_joined(text)
            or self._translate_bracketed(text)
            or self._translate_numbered(text)
            or text
        )

    def _translate_joined(self, text: str) -> str | None:
        """Translate the parts that "and" joins, if each of them is known or a name."""
        entries = _split(_ALSO, text)[::2]
        translations = [self.translate(one) for one in entries] if len(entries) > 1 else entries
        if len(entries) > 1 and all(map(_AMOUNTS.fullmatch, entries)):
            return self.label(_AND).join(entries)
        pairs = zip(entries, translations, strict=True)
        stand = [one for one, other in pairs if one == other and not TYPED.fullmatch(one)]
        if len(stand) == len(entries) or any(" " in one for one in stand):
            return None
        return self.label(_AND).join(translations)

    def _translate_bracketed(self, text: str) -> str | None:
        """Translate what is in brackets and what is beside them."""
        pieces = _BRACKETS.split(text)
        if len(pieces) == 1:
            return None
        ways = (self.translate, self._note)
        translations = [ways[index % 2](piece) for index, piece in enumerate(pieces)]
        return None if translations == pieces else "".join(translations)

    def _note(self, text: str) -> str:
        if (translated := self.known(text, begun=True)) is not None:
            return translated
        note = text.strip()[1:-1]
        translation = self.translate(note)
        return (
            text
            if translation == note
            else fill(self.label(_BRACKETED), {"value": "", "note": translation})
        )

    def _translate_numbered(self, text: str) -> str | None:
        """Translate a name before a number."""
        if (found := _NUMBERED.fullmatch(text)) is None:
            return None
        name = self.label(found[1])
        return None if name == found[1] else f"{name} {found[2]}"


def tidy(text: str) -> str:
    """Remove the spaces beside the full-width marks of a text.

    Example:
        >>> tidy("层 ： 3")
        '层：3'
    """
    return _WIDE.sub(r"\1", text)


def prose(text: str) -> bool:
    """Return whether several words of English stand in a row.

    Example:
        >>> prose("比 llama, mamba 更好"), prose("比 all of the others 更好")
        (False, True)
    """
    return _PROSE.search(text) is not None


def _split(seam: re.Pattern[str], text: str) -> list[str]:
    """Split a text at seams outside brackets; the mark of each seam stands between its parts."""
    first, *rest = seam.split(text)
    found = [first]
    for mark, part in zip(rest[::2], rest[1::2], strict=True):
        if any(found[-1].count(a) > found[-1].count(b) for a, b in ("()", "[]")):
            found[-1] += mark + part
        else:
            found += [mark, part]
    return found


def _count_untranslated(given: str, translation: str) -> int:
    """Count the words of a text that its translation left as they were."""
    words = set(_WORD.findall(translation))
    return sum(word in words for word in _WORD.findall(given))
