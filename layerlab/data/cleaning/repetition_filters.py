"""Repetition filters: shares of repeated lines, paragraphs and n-grams."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from layerlab.data.cleaning.ngrams import dense, keys, units, windows

# Characters of Chinese that stand for a word in a run. With two, a third of China's statutes, whose
# language is formulaic, would be called repetitive; with three, 3 % of their text is.
DENSE = 3
# Units within which repetition is looked for: the longer a text, the more of it has been said.
WINDOW = 1000
TOP = MappingProxyType({2: 0.20, 3: 0.18, 4: 0.16})
REPEATED = MappingProxyType({5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10})


@dataclass(frozen=True, kw_only=True)
class MaxShares:
    """The largest shares that a text may have.

    Source: rae21, appendix A1.1, table of repetition thresholds.

    Attributes:
        lines: repeated lines, of all lines.
        paragraphs: repeated paragraphs, of all paragraphs.
        line_characters: characters in repeated lines.
        paragraph_characters: characters in repeated paragraphs.
        top: characters in the most frequent n-gram, by n.
        repeated: characters in n-grams that stand earlier in the text too, by n.
    """

    lines: int | float = 0.30
    paragraphs: int | float = 0.30
    line_characters: int | float = 0.20
    paragraph_characters: int | float = 0.20
    top: Mapping[int, int | float] = field(default_factory=lambda: TOP)
    repeated: Mapping[int, int | float] = field(default_factory=lambda: REPEATED)

    def find_exceeded(self, text: str) -> str | None:
        """Return the first limit that a text exceeds, in words; None where it exceeds none."""
        lines = [line.strip() for line in text.splitlines()]
        blocks = [block.strip() for block in text.split("\n\n")]
        for what, parts, share, characters in (
            ("line", lines, self.lines, self.line_characters),
            ("paragraph", blocks, self.paragraphs, self.paragraph_characters),
        ):
            count, size = again([part for part in parts if part])
            if count > share:
                return f"repeated {what}s {count:.2f} > {share:.2f}"
            if size > characters:
                return f"characters in repeated {what}s {size:.2f} > {characters:.2f}"
        return self._grams(text)

    def to_dict(self) -> dict[str, Any]:
        """Return the limits as plain dicts and numbers."""
        return {**vars(self), "top": dict(self.top), "repeated": dict(self.repeated)}

    def _grams(self, text: str) -> str | None:
        parts = units(text)
        scale = DENSE if dense(parts) else 1
        found, sizes = keys(parts), np.array([len(part) for part in parts])
        kind = "characters" if scale > 1 else "words"
        for size, limit in self.top.items():
            share = top(found, sizes, size * scale)
            if share > limit:
                return f"the most frequent run of {size * scale} {kind} {share:.2f} > {limit:.2f}"
        for size, limit in self.repeated.items():
            share = nearby(found, sizes, size * scale)
            if share > limit:
                return f"repeated runs of {size * scale} {kind} {share:.2f} > {limit:.2f}"
        return None


LIMITS = MaxShares()


def again(parts: Sequence[str]) -> tuple[float, float]:
    """Return the shares of the parts that stand earlier too, of their number and their characters.

    0 repeats nothing; of n equal parts it is (n - 1) / n.

    Source: rae21, appendix A1.1.

    Example:
        >>> again(["a", "bb", "a", "a"])
        (0.5, 0.4)
    """
    seen: set[str] = set()
    count = size = 0
    for part in parts:
        if part in seen:
            count += 1
            size += len(part)
        seen.add(part)
    total = sum(map(len, parts))
    return (count / len(parts), size / total) if total else (0.0, 0.0)


def top(found: np.ndarray, sizes: np.ndarray, size: int) -> float:
    """Return the share of the characters that the most frequent run of `size` units takes.

    Source: rae21, appendix A1.1. Differs: a run that stands once repeats nothing and counts 0; for
    Chinese, n words are taken as 3 n characters.

    Args:
        found: a number for each unit.
        sizes: characters of each unit.
    """
    runs = windows(found, size)
    if not len(runs):
        return 0.0
    _, first, counts = np.unique(runs, return_index=True, return_counts=True)
    most = int(counts.max())
    if most < 2:
        return 0.0
    length = np.convolve(sizes, np.ones(size, np.int64), "valid")[first[counts == most]].max()
    return float(min(1.0, most * length / sizes.sum()))


def nearby(found: np.ndarray, sizes: np.ndarray, size: int) -> float:
    """Return the share of repeated runs within 1,000 units, averaged over a text's characters.

    Source: Own: in a whole text the share grows with its length, and the limits are those of pages.

    Args:
        found: a number for each unit.
        sizes: characters of each unit.
    """
    total = 0.0
    for first in range(0, len(found), WINDOW):
        part = slice(first, first + WINDOW)
        total += repeated_share(found[part], sizes[part], size) * float(sizes[part].sum())
    return total / float(sizes.sum()) if len(found) else 0.0


def repeated_share(found: np.ndarray, sizes: np.ndarray, size: int) -> float:
    """Return the share of the characters in runs of `size` units that stand earlier too.

    Each character counts once.

    0 repeats no run; towards 1, everything after the beginning has been said before.

    Source: rae21, appendix A1.1. Differs: what is counted is the repetition, not what is repeated;
    for Chinese, n words are taken as 3 n characters.

    Args:
        found: a number for each unit.
        sizes: characters of each unit.
    """
    runs = windows(found, size)
    if not len(runs):
        return 0.0
    first = np.unique(runs, return_index=True)[1]
    later = np.ones(len(runs), bool)
    later[first] = False
    edges = np.zeros(len(found) + 1, np.int64)
    np.add.at(edges, np.flatnonzero(later), 1)
    np.add.at(edges, np.flatnonzero(later) + size, -1)
    covered = np.cumsum(edges)[:-1] > 0
    return float(sizes[covered].sum() / sizes.sum())
