"""The page in another language: gettext's catalogues, and sentences known by their templates.

`report.json` stays English in every language, and a page is made from it. A label is looked up as
it stands. A sentence with numbers in it is recognized by its template, which is the message of the
catalogue: what stands at the placeholders is taken over, translated where it is words again.
What no catalogue knows stands as it is.
"""

import gettext
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from layerlab.errors import UserError
from layerlab.report.i18n.clause import NUMBERED, TYPED, Clauses, prose, tidy
from layerlab.report.i18n.template import PLACEHOLDER, Template, fill, own

Say = Callable[[str], str]
ENGLISH = "en"
DOMAIN = "layerlab"
COLUMN = "column"
FOLDER = Path(__file__).parent / "locale"
# Letters of a template that says little by itself.
_WEAK = 12
# Texts whose translation is remembered.
_SEEN = 10_000


class Label(str):
    """Words of the page; any other text of a table is data and stands as it is."""


def label(text: str) -> Label:
    """Mark words, so that the catalogues hold them and the page says them in its language."""
    return Label(text)


def labels(*texts: str) -> tuple[Label, ...]:
    """Mark several words, such as the heads of a table's columns."""
    return tuple(map(Label, texts))


class Language:
    """One language of the page.

    Example:
        >>> language("zh").translate("layer 3 head 2"), language("en").translate("layer 3 head 2")
        ('第 3 层第 2 头', 'layer 3 head 2')
    """

    def __init__(self, code: str, names: frozenset[str] = frozenset()):
        """Read the catalogue of a language; English needs none.

        Args:
            code: of the language.
            names: that a user gave; they stand as they are in every sentence.
        """
        self.code, self._names = code, names
        kept = (f"(?:{re.escape(name)}){NUMBERED}" for name in sorted(names))
        self._kept = re.compile("|".join((TYPED.pattern, *kept)))
        self.catalogue: gettext.NullTranslations = (
            gettext.NullTranslations()
            if code == ENGLISH
            else gettext.translation(DOMAIN, FOLDER, [code])
        )
        self._clauses = Clauses(lru_cache(_SEEN)(self._look_up), self.label)

    def label(self, message: str) -> str:
        """Translate a fixed text of the page."""
        return self.catalogue.gettext(message) if message else ""

    def column(self, name: str) -> str:
        """Return what a column of a table is, followed by its name in the files."""
        translated = self.catalogue.pgettext(COLUMN, name)
        return name if translated == name else f"{translated} ({name})"

    def axis(self, name: str) -> str:
        """Return what names a row, without the column's name in the files."""
        return self.catalogue.pgettext(COLUMN, name)

    def translate(self, text: str) -> str:
        """Translate a text, whatever numbers stand in it; unknown parts stay as they are.

        Example:
            >>> language("zh").translate("pangu23, Figure 4; Own")
            'pangu23，图 4；自定'
        """
        if self.code == ENGLISH or not any(map(str.isalnum, text)):
            return text
        return self._clauses.translate(text)

    def word(self, value: Any) -> Any:
        """Translate words of the page; numbers and data stay as they are."""
        if not isinstance(value, Label):
            return value
        fixed = self.label(value)
        return self.translate(value) if fixed == value else fixed

    def _look_up(self, text: str, *, begun: bool = False, strong: bool = False) -> str | None:
        """Look up the translation of a text, as it stands or by its template."""
        if self._kept.fullmatch(text):
            return text
        # A sentence begins with a capital, and its template may not.
        forms = (text, text[:1].lower() + text[1:])
        for given in forms:
            if (translated := self.label(given)) != given:
                return translated
        lower = text.lower()
        for template in self._templates:
            if strong and template.own <= _WEAK:
                break
            if template.sign not in lower or (begun and not template.begins):
                continue
            for given in forms:
                if (found := template.parts(given)) is not None:
                    parts = {name: self.translate(part) for name, part in found.items()}
                    # It was meant for something else if what is left is prose.
                    if template.own > _WEAK or not any(map(prose, parts.values())):
                        return tidy(fill(template.translation, parts))
        return None

    def names(self, text: str) -> str:
        """Translate what rows have in common, a list with commas, part by part."""
        return ", ".join(self.translate(part) for part in text.split(", "))

    def remark(self, note: str, models: Iterable[Mapping[str, Any]]) -> str:
        """Translate a note about a model, which begins with the model's name."""
        for model in models:
            name = f"{model['name']}: "
            if note.startswith(name):
                return f"{model['name']}{self.label(': ')}{self.translate(note.removeprefix(name))}"
        return self.translate(note)

    @cached_property
    def _templates(self) -> list["Template"]:
        """Return the messages with placeholders, those that say most by themselves first."""
        if self._names:
            return language(self.code)._templates
        stored: dict[str, str] = getattr(self.catalogue, "_catalog", {})
        messages = [
            (key, translation)
            for key, translation in stored.items()
            if isinstance(key, str)
            and translation
            and "\x04" not in key
            and PLACEHOLDER.search(key)
        ]
        messages.sort(key=lambda one: (-own(one[0]), one[0]))
        return [Template(key, translation) for key, translation in messages]


def languages() -> list[str]:
    """Return the languages that a page can be in."""
    return [ENGLISH, *sorted(file.parts[-3] for file in FOLDER.glob(f"*/*/{DOMAIN}.mo"))]


@lru_cache(maxsize=8)
def language(code: str, names: frozenset[str] = frozenset()) -> Language:
    """Return a language by its code, for a page with names that a user gave.

    Raises:
        UserError: there is no page in this language.
    """
    codes = languages()
    if code in codes:
        return Language(code, names)
    others = ", ".join(codes)
    raise UserError(f"there is no page in {code!r:.40}; its languages are: {others}")
