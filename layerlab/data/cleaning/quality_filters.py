"""Whether a document is text at all: broken characters, symbols, characters that repeat."""

import re
from dataclasses import dataclass

import numpy as np

from layerlab.data.cleaning.ngrams import DENSE
from layerlab.data.cleaning.repetition_filters import nearby
from layerlab.errors import UserError
from layerlab.validation import short_repr

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


@dataclass(frozen=True, kw_only=True)
class Quality:
    """The shares that a document may have; 1 (of words with a letter: 0) sets no limit.

    Not taken over are the source's limits that hold for English alone: stop words, and the length
    of words and documents in words.

    Source: rae21, appendix A1.1 (symbols, words, lines). Differs: of scripts without spaces each
        character is a word; marks that stand alone are none. The other limits are Own.

    Attributes:
        broken: of characters: U+FFFD and control characters.
        symbols: # and ellipses, of the number of words.
        words: of words, that have a letter; the least.
        bullets: of lines, that begin with a bullet.
        ellipses: of lines, that end in an ellipsis.
        characters: of characters, marks too, in runs of 10 that stand earlier among 1,000.
    """

    broken: int | float = 0.005
    symbols: int | float = 0.1
    words: int | float = 0.8
    bullets: int | float = 0.9
    ellipses: int | float = 0.3
    characters: int | float = 0.5

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 <= value <= 1:
                raise UserError(f"{name} is {short_repr(value)}; expected a share from 0 to 1")

    def passed(self, text: str) -> tuple[str, str] | None:
        """Return the first limit that a text exceeds, as a reason and in words; else None.

        Example:
            >>> Quality().passed("=" * 80)
            ('symbols', 'words with a letter 0.00 < 0.80')
            >>> Quality().passed("A contract is made by an offer and its acceptance.")
        """
        said = self._broken(text)
        if said:
            return "broken", said
        said = self._words(text) or self._lines(text)
        if said:
            return "symbols", said
        said = self._characters(text)
        return ("repetition", said) if said else None

    def _broken(self, text: str) -> str | None:
        share = len(_BROKEN.findall(text)) / max(1, len(text))
        if share > self.broken:
            return f"broken or control characters {share:.3f} > {self.broken:.3f}"
        return None

    def _words(self, text: str) -> str | None:
        words = [word for word in _WORD.findall(text) if not _MARK.fullmatch(word)]
        share = sum(map(bool, map(_LETTER.search, words))) / max(1, len(words))
        if share < self.words:
            return f"words with a letter {share:.2f} < {self.words:.2f}"
        share = len(_SYMBOL.findall(text)) / max(1, len(words))
        if min(1.0, share) > self.symbols:  # a limit of 1 is none
            return f"# and ellipses to words {share:.2f} > {self.symbols:.2f}"
        return None

    def _lines(self, text: str) -> str | None:
        lines = [line for one in text.splitlines() if (line := one.strip())]
        share = sum(line.startswith(_BULLET) for line in lines) / max(1, len(lines))
        if share > self.bullets:
            return f"lines that begin with a bullet {share:.2f} > {self.bullets:.2f}"
        share = sum(line.endswith(_ELLIPSIS) for line in lines) / max(1, len(lines))
        if share > self.ellipses:
            return f"lines that end in an ellipsis {share:.2f} > {self.ellipses:.2f}"
        return None

    def _characters(self, text: str) -> str | None:
        plain = "".join(text.split())
        found = np.frombuffer(plain.encode("utf-32-le", "surrogatepass"), np.uint32)
        share = nearby(found.astype(np.uint64), np.ones(len(found), np.int64), RUN)
        if share > self.characters:
            return f"repeated runs of {RUN} characters {share:.2f} > {self.characters:.2f}"
        return None
