"""The page in another language: gettext's catalogues, and sentences known by their templates.

`report.json` stays English in every language, and a page is made from it. A label is looked up as
it stands. A sentence with numbers in it is recognised by its template, which is the message of the
catalogue: what stands at the placeholders is taken over, translated where it is words again.
What no catalogue knows stands as it is.
"""

import gettext
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from layerlab import UserError
from layerlab.report.template import PLACEHOLDER, Template, filled, own

ENGLISH = "en"
DOMAIN = "layerlab"
COLUMN = "column"
FOLDER = Path(__file__).parent / "locale"
# Where what fills a placeholder may begin, if nothing stands in front of it.
_SEAM = re.compile(r"(?=, | \(| [A-Z])")
# What stands between the entries of a list, and that it is not inside brackets.
_BETWEEN = re.compile(r"(; |: |, and |, | and )(?![^()]*\))")
_BRACKETS = re.compile(r"(?P<value>.+) \((?P<note>(?:[^()]|\([^()]*\))*)\)")
_ENGLISH_WORD = re.compile(r"[a-z]{2,}")
_NAME = re.compile(r"(?=\S*[A-Za-z])\S*[\d_A-Z-]\S*")
_PROSE = re.compile(r"(?:\b[a-z]{2,}\b[ ,]*){4}")
_NUMBERED = re.compile(r"(.*\S) ([+-]?\d\S*)")
# Before a clause that has said the mark before it.
_MARKED = "\b"
# Full-width marks bring their own space.
_WIDE = re.compile(r" ?([（），。；：、]) ?")
_BRACKETED = "{value} ({note})"
# Clauses that one template may say.
_MOST = 5
# A clause that nobody knows may have no more spaces than this among those that are known.
_FEW_SPACES = 2
# Letters of a template that says little by itself.
_WEAK = 12
# Texts whose translation is remembered.
_SEEN = 10_000
_NEVER = 1000


class Language:
    """One language of the page.

    Example:
        >>> language("zh").sentence("layer 3 head 2"), language("en").sentence("layer 3 head 2")
        ('第 3 层第 2 头', 'layer 3 head 2')
    """

    def __init__(self, code: str):
        """Read the catalogue of a language; English needs none."""
        self.code = code
        self.catalogue: gettext.NullTranslations = (
            gettext.NullTranslations()
            if code == ENGLISH
            else gettext.translation(DOMAIN, FOLDER, [code])
        )
        self._seen: dict[tuple[str, bool], str | None] = {}

    def label(self, message: str) -> str:
        """A fixed text of the page."""
        return self.catalogue.gettext(message) if message else ""

    def column(self, name: str) -> str:
        """A column of a table: what it is, with the name that it has in the files."""
        known = self.catalogue.pgettext(COLUMN, name)
        return name if known == name else f"{known} ({name})"

    def axis(self, name: str) -> str:
        """What a row is named by, without the name that the column has in the files."""
        return self.catalogue.pgettext(COLUMN, name)

    def sentence(self, text: str) -> str:
        """A whole sentence, with whatever numbers stand in it."""
        return text if (known := self._known(text)) is None else known

    def told(self, text: str) -> str:
        """Several clauses or names, each of which is known or stands.

        Example:
            >>> language("zh").told("pangu23, Figure 4; Own")
            'pangu23、图 4；自定'
        """
        if self.code == ENGLISH:
            return text
        if (known := self._known(text)) is not None:
            return known
        bare = text.removesuffix(".")
        return self._part(bare) + self.label(text[len(bare) :])

    def _known(self, text: str, *, begun: bool = False) -> str | None:
        """What the catalogue has for a text: as it stands, as a list, or by its template.

        Args:
            begun: the template has to begin with a word of its own.
        """
        if self.code == ENGLISH or not text.strip():
            return None
        if (text, begun) not in self._seen:
            if len(self._seen) > _SEEN:
                self._seen.clear()
            self._seen[text, begun] = self._found(text, begun)
        return self._seen[text, begun]

    def _found(self, text: str, begun: bool) -> str | None:
        # A sentence begins with a capital, and its template may not.
        forms = (text, text[:1].lower() + text[1:])
        for given in forms:
            if (known := self.label(given)) != given:
                return known
        weak = False
        for template in self._templates:
            if begun and not template.begins:
                continue
            if template.own <= _WEAK and not weak:
                weak = True
                # What says little by itself comes after a list of texts that are all known.
                if not begun and (listed := self._list(text, spaces=-1)) is not None:
                    return listed
            for given in forms:
                if (found := template.parts(given)) is not None:
                    said = {name: self._part(part) for name, part in found.items()}
                    # It was meant for something else if what is left is prose.
                    if not weak or not any(_PROSE.search(part) for part in said.values()):
                        return _WIDE.sub(r"\1", filled(template.said, said))
        return None

    def _part(self, text: str) -> str:
        """What stands at a placeholder, or at several without a word between them."""
        if (known := self._known(text)) is not None:
            return known
        if (known := self._list(text, spaces=0)) is not None:
            return known
        starts = [found.start() for found in _SEAM.finditer(text)]
        for start in starts:
            for end in [*(one for one in starts if one > start), len(text)]:
                if (known := self._known(text[start:end], begun=True)) is not None:
                    return text[:start] + known + self._part(text[end:])
        return text if (known := self._list(text, spaces=_FEW_SPACES)) is None else known

    def _list(self, text: str, *, spaces: int) -> str | None:
        """A list of texts, or clauses: each by itself, those together that one template says.

        Args:
            spaces: that a clause may have which nobody knows; fewer than 0 for names alone.
        """
        entries = _BETWEEN.split(text)
        if len(entries) == 1 and spaces < 0:
            return None
        # From the last entry on, the best way to say it.
        best = [_Said()]
        for place in range(len(entries) - 1, -1, -2):
            best = [min(self._clauses(entries, place, spaces, best)), *best]
        found = best[0]
        return None if found.unknown >= min(_NEVER, found.clauses) else found.text

    def _clauses(
        self, entries: list[str], place: int, spaces: int, best: list["_Said"]
    ) -> Iterator["_Said"]:
        """Ways to say a list from an entry on; `best` are those from the next entries on."""
        for count in range(1, min(_MOST, len(best)) + 1):
            end, after = place + 2 * count - 1, best[count - 1]
            run, mark = "".join(entries[place:end]), "".join(entries[end : end + 1])
            if mark and (known := self.label(run + mark)) != run + mark:
                yield after.behind(known)
            behind = self.label(mark)
            whole = len(run) == sum(map(len, entries))
            before = "".join(entries[max(0, place - 1) : place])
            if (said := None if whole else self._after(before, run)) is not None:
                yield after.behind(said, behind)
            elif count == 1 and (said := self._inside(run, before)) is not None:
                left = _ENGLISH_WORD.search(said) is not None
                yield after.behind(said, behind, unknown=(_NEVER if spaces < 0 else 1) * left)
            elif count == 1:
                name = run.count(" ") <= spaces or _NAME.fullmatch(run)
                yield after.behind(run, behind, unknown=1 if name else _NEVER)

    def _after(self, mark: str, text: str) -> str | None:
        """A clause, or what the catalogue has for it with the mark before it."""
        if (known := self._known(text)) is not None or not mark:
            return known
        known = self._known(mark + text, begun=True)
        return None if known is None else _MARKED + known

    def _inside(self, text: str, before: str) -> str | None:
        """A text that has a number behind it, or an end in brackets: each part by itself."""
        if (found := _NUMBERED.fullmatch(text)) and (name := self.label(found[1])) != found[1]:
            return f"{name} {found[2]}"
        if (found := _BRACKETS.fullmatch(text)) is None:
            return None
        parts = {name: self._part(part) for name, part in found.groupdict().items()}
        parts["value"] = self._after(before, found["value"]) or parts["value"]
        if parts == found.groupdict():
            return None
        return _WIDE.sub(r"\1", filled(self.label(_BRACKETED), parts))

    def names(self, text: str) -> str:
        """What rows have in common, with commas: each part by itself."""
        return ", ".join(self.sentence(part) for part in text.split(", "))

    def remark(self, note: str, models: Iterable[Mapping[str, Any]]) -> str:
        """A note about a model, which begins with the model's name."""
        for model in models:
            name = f"{model['name']}: "
            if note.startswith(name):
                return name + self.sentence(note.removeprefix(name))
        return self.sentence(note)

    @cached_property
    def _templates(self) -> list["Template"]:
        """The messages that have placeholders, those that say most by themselves first."""
        stored: dict[str, str] = getattr(self.catalogue, "_catalog", {})
        messages = [
            (key, said)
            for key, said in stored.items()
            if isinstance(key, str) and said and "\x04" not in key and PLACEHOLDER.search(key)
        ]
        messages.sort(key=lambda one: (-own(one[0]), one[0]))
        return [Template(key, said) for key, said in messages]


@dataclass(frozen=True, order=True)
class _Said:
    """A way to say a list; the least is the best.

    Attributes:
        unknown: clauses that nobody knows.
        left: words that stay as they were.
    """

    unknown: int = 0
    left: int = 0
    clauses: int = 0
    text: str = ""

    def behind(self, text: str, mark: str = "", *, unknown: int = 0) -> "_Said":
        """The same behind one more clause."""
        left = self.left + len(_ENGLISH_WORD.findall(text))
        text += self.text.removeprefix(_MARKED) if self.text[:1] == _MARKED else mark + self.text
        return _Said(self.unknown + unknown, left, self.clauses + 1, text)


def languages() -> list[str]:
    """The languages that a page can be in."""
    return [ENGLISH, *sorted(file.parts[-3] for file in FOLDER.glob(f"*/*/{DOMAIN}.mo"))]


@cache
def language(code: str) -> Language:
    """A language by its code.

    Raises:
        UserError: there is no page in this language.
    """
    known = languages()
    if code in known:
        return Language(code)
    others = ", ".join(known)
    raise UserError(f"there is no page in {code!r:.40}; its languages are: {others}")
