"""Remarks of several clauses, and words of a page among its data, in the page's language."""

import re
from functools import cache
from typing import Any

from layerlab.report.language import ENGLISH, language

# Where a clause may begin, and how the mark before it is written in other languages.
_SEAM = re.compile(r"(?=; |: |, )")
_BRACKETS = re.compile(r"(.*?) ?\((.*)\)(.*)", re.DOTALL)
_SENTENCE = re.compile(r"(?<=[^\W\d_]{2}\.) (?=\S)")
_WORD = re.compile(r"[^\W\d_]{2,}")
# Clauses that one template may say.
_MOST = 8


class Label(str):
    """Words of the page; any other text of a table is data and stands as it is."""


class Remark(Label):
    """The same of several clauses."""


def label(words: str) -> Label:
    """Marks words, so that the catalogues hold them and the page says them in its language."""
    return Label(words)


# Entries of a list have another mark between them than clauses.
_MARKS = {"; ": label("; "), ": ": label(": "), ", ": label(",")}
_AROUND = (label("("), label(")"))


class Teller:
    """Says what the data bring in the language of a page."""

    def __init__(self, lang: str):
        """A language; English leaves everything as it is."""
        self.lang = lang
        self.known = language(lang)

    def word(self, value: Any) -> Any:
        """Words of the page; numbers and data are left as they are."""
        if isinstance(value, Remark):
            return self.remark(value)
        return self.known.sentence(value) if isinstance(value, Label) else value

    def remark(self, value: Any) -> str:
        """A remark clause by clause, each by the template that knows it; the rest stands.

        Example:
            >>> Teller("zh").remark("3 seeds, unpaired: the two share no seed.")
            '3 个种子，非配对：两者没有共同的种子。'
        """
        text = str(value)
        if self.lang == ENGLISH:
            return text
        if (known := self.known.label(text)) != text:
            return known
        return " ".join(map(self._sentence, _SENTENCE.split(text)))

    def _sentence(self, text: str) -> str:
        if (known := self.known.label(text)) != text:
            return known
        whole = text.removesuffix(".")
        said = self._clauses(whole)
        return text if said == whole else said + self.known.label(text[len(whole) :])

    def _clauses(self, text: str) -> str:
        """Cut so that the fewest words are left as they were, and then into the most clauses."""
        clauses = _clauses(text)
        best: list[tuple[int, int, str]] = [(0, 0, "")]
        for start in reversed(range(len(clauses))):
            ways = []
            for count in range(1, min(_MOST, len(clauses) - start) + 1):
                given = "".join(clauses[start : start + count])
                left, parts, rest = best[count - 1]
                said = self._known(given)
                if said is not None or count == 1:
                    told = self._inside(given) if said is None else said
                    left += _left(given, told)
                    ways.append((left, parts - (said is not None), told + rest))
            best.insert(0, min(ways, key=lambda way: way[:2]))
        return best[0][2]

    def _known(self, clause: str) -> str | None:
        """A clause with the mark before it."""
        for mark, own in _MARKS.items():
            bare = clause.removeprefix(mark)
            if bare != clause and (said := self.known.sentence(bare)) != bare:
                return self.known.label(own) + said
        said = self.known.sentence(clause)
        return None if said == clause else said

    def _inside(self, clause: str) -> str:
        """A clause that no template knows: what stands in its brackets, and before them."""
        if (found := _BRACKETS.fullmatch(clause)) is None:
            return clause
        head, inner, rest = found.groups()
        told, said = self._clauses(inner), self._known(head)
        if told != inner:
            opened, closed = map(self.known.label, _AROUND)
            return f"{said or head}{opened}{told}{closed}{rest}"
        return clause if said is None else f"{said} ({inner}){rest}"


@cache
def teller(lang: str) -> Teller:
    """The one of a language.

    Raises:
        UserError: there is no page in this language.
    """
    return Teller(lang)


def _clauses(text: str) -> list[str]:
    """A text cut where a clause may begin, unless it is inside brackets."""
    found: list[str] = []
    for part in _SEAM.split(text):
        inside = found and any(found[-1].count(a) > found[-1].count(b) for a, b in ("()", "[]"))
        found[-1:] = [found[-1] + part] if inside else [*found[-1:], part]
    return [part for part in found if part]


def _left(given: str, said: str) -> int:
    """How many words of a clause are said as they were."""
    words = set(_WORD.findall(said))
    return sum(word in words for word in _WORD.findall(given))
