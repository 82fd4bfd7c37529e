"""The page in another language: gettext's catalogues, and sentences known by their templates.

`report.json` stays English in every language, and a page is made from it. A label is looked up as
it stands. A sentence with numbers in it is recognised by its template, which is the message of the
catalogue: what stands at the placeholders is taken over, translated where it is words again.
What no catalogue knows stands as it is.
"""

import gettext
import re
from collections.abc import Iterable, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from layerlab import UserError

ENGLISH = "en"
DOMAIN = "layerlab"
COLUMN = "column"
FOLDER = Path(__file__).parent / "locale"
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
# Where what fills a placeholder may begin, if nothing stands in front of it.
_SEAM = re.compile(r"(?=, | \(| [A-Z])")
# A template with no more letters than these takes single words at its placeholders only.
_FEW = 5
# Anything, with its brackets closed.
_ANY = r"(?:[^()]|\((?:[^()]|\([^()]*\))*\))*?"
_WORD = r"(?:[^\s(,]|,(?=\S))*(?: %)?(?: \(\S+ to \S+\))?"
# What stands between the entries of a list, and that it is not inside brackets.
_BETWEEN = re.compile(r"(; |: |, and |, | and )(?![^()]*\))")


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

    def _known(self, text: str) -> str | None:
        if self.code == ENGLISH or not text.strip():
            return None
        # A sentence begins with a capital, and its template may not.
        forms = (text, text[:1].lower() + text[1:])
        for given in forms:
            if (known := self.label(given)) != given:
                return known
        for template in self._templates:
            for given in forms:
                if (found := template.parts(given)) is not None:
                    said = {name: self._part(part) for name, part in found.items()}
                    return filled(template.said, said)
        return None

    def _part(self, text: str) -> str:
        """What stands at a placeholder, or at several without a word between them."""
        if (known := self._known(text)) is not None:
            return known
        if (known := self._list(text, whole=True)) is not None:
            return known
        starts = [found.start() for found in _SEAM.finditer(text)]
        for start in starts:
            for end in [*(one for one in starts if one > start), len(text)]:
                if (known := self._known(text[start:end])) is not None:
                    return text[:start] + known + self._part(text[end:])
        return text if (known := self._list(text, whole=False)) is None else known

    def _list(self, text: str, *, whole: bool) -> str | None:
        """A list of texts: each by itself.

        Args:
            whole: leave the list as it is unless each of them is known, or is one word.
        """
        entries = _BETWEEN.split(text)
        found = [self._known(entry) for entry in entries[::2]]
        if len(found) < 2 or not any(found):
            return None
        if whole and any(k is None and " " in e for k, e in zip(found, entries[::2], strict=True)):
            return None
        told = [e if k is None else k for k, e in zip(found, entries[::2], strict=True)]
        entries[::2], entries[1::2] = told, [self.label(mark) for mark in entries[1::2]]
        return "".join(entries)

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
            if isinstance(key, str) and said and "\x04" not in key and _PLACEHOLDER.search(key)
        ]
        messages.sort(key=lambda one: (-_own(one[0]), one[0]))
        return [Template(key, said) for key, said in messages]


class Template:
    """A message with placeholders, and what it is in the other language."""

    def __init__(self, message: str, said: str):
        """Its pattern is made when a text has all the words that stand between placeholders."""
        self.message, self.said = message, said
        self.words = [word for word in _PLACEHOLDER.split(message)[::2] if word]

    def parts(self, text: str) -> dict[str, str] | None:
        """What fills its placeholders in a text, or None if the text is another."""
        place = 0
        for word in self.words:
            if (start := text.find(word, place)) < 0:
                return None
            place = start + len(word)
        found = self._pattern.fullmatch(text)
        return None if found is None else found.groupdict()

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return pattern(self.message)


def pattern(message: str) -> re.Pattern[str]:
    """What a template looks like when it is filled.

    Example:
        >>> pattern("layer {layer}: {what}.").fullmatch("layer 3: fine.").groupdict()
        {'layer': '3', 'what': 'fine'}
    """
    parts = _PLACEHOLDER.split(message)
    few = _own(message) <= _FEW and ":" not in message
    seen: set[str] = set()
    written = []
    for index, part in enumerate(parts):
        if index % 2 == 0:
            # A stop that a digit follows belongs to a number.
            stop = part.startswith(".") and index
            written.append(rf"\.(?!\d){re.escape(part[1:])}" if stop else re.escape(part))
        elif part in seen:
            written.append(f"(?P={part})")
        else:
            # Where nothing stands between two, the first is a number or a name.
            touching = not parts[index + 1] and index + 2 < len(parts)
            written.append(f"(?P<{part}>{_WORD if few or touching else _ANY})")
            seen.add(part)
    return re.compile("".join(written), re.DOTALL)


def filled(message: str, parts: dict[str, str]) -> str:
    """A template with its placeholders filled; a placeholder that nothing is given for stays.

    Example:
        >>> filled("第 {layer} 层", {"layer": "3"})
        '第 3 层'
    """
    return _PLACEHOLDER.sub(lambda found: parts.get(found[1], found[0]), message)


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


def _own(message: str) -> int:
    """How many letters and digits a template brings itself."""
    return sum(character.isalnum() for character in _PLACEHOLDER.sub("", message))
