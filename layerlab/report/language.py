"""The page in another language: gettext's catalogues, and sentences known by their templates.

`report.json` stays English in every language, and a page is made from it. A label is looked up as
it stands. A sentence with numbers in it is recognised by its template, which is the message of the
catalogue: what stands at the placeholders is taken over, translated where it is words again.
What no catalogue knows stands as it is.
"""

import difflib
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
# A template with no more letters than these takes single words at its placeholders only.
_FEW = 4


class Language:
    """One language of the page.

    Example:
        >>> language("en").sentence("layer 3 head 2")
        'layer 3 head 2'
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
        """A whole or partial sentence, with whatever numbers stand in it."""
        if self.code == ENGLISH or not text.strip():
            return text
        for given in (text, text[:1].lower() + text[1:]):
            if (known := self.label(given)) != given:
                return known
            for pattern, message in self._templates:
                if found := pattern.fullmatch(given):
                    parts = {name: self.sentence(part) for name, part in found.groupdict().items()}
                    return filled(message, parts)
        return text

    def remark(self, note: str, models: Iterable[Mapping[str, Any]]) -> str:
        """A note about a model, which begins with the model's name."""
        for model in models:
            name = f"{model['name']}: "
            if note.startswith(name):
                return name + self.sentence(note.removeprefix(name))
        return self.sentence(note)

    @cached_property
    def _templates(self) -> list[tuple[re.Pattern[str], str]]:
        """The messages that have placeholders, those that say most by themselves first."""
        stored: dict[str, str] = getattr(self.catalogue, "_catalog", {})
        messages = [
            (key, said)
            for key, said in stored.items()
            if isinstance(key, str) and said and "\x04" not in key and _PLACEHOLDER.search(key)
        ]
        messages.sort(key=lambda one: (-_own(one[0]), one[0]))
        return [(pattern(key), said) for key, said in messages]


def pattern(message: str) -> re.Pattern[str]:
    """What a template looks like when it is filled.

    Example:
        >>> pattern("layer {layer}: {what}.").fullmatch("layer 3: fine.").groupdict()
        {'layer': '3', 'what': 'fine'}
    """
    parts = _PLACEHOLDER.split(message)
    part_of = r"\S*?" if _own(message) <= _FEW else ".*?"
    seen: set[str] = set()
    written = []
    for index, part in enumerate(parts):
        if index % 2 == 0:
            written.append(re.escape(part))
        else:
            written.append(f"(?P={part})" if part in seen else f"(?P<{part}>{part_of})")
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
    close = difflib.get_close_matches(code.lower(), known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise UserError(
        f"there is no page in {code!r:.40}; its languages are: {', '.join(known)}{hint}"
    )


def _own(message: str) -> int:
    """How many letters and digits a template brings itself."""
    return sum(character.isalnum() for character in _PLACEHOLDER.sub("", message))
