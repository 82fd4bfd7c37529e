"""Repetition filters: shares of repeated lines, paragraphs and n-grams."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from layerlab.data.cleaning.ngrams import dense, first_places, numbered_units, windows

# Characters of Chinese that stand for a word in a run. With two, a third of China's statutes, whose
# language is formulaic, would be called repetitive; with three, 3 % of their text is.
DENSE = 3
# Units within which repetition is looked for: the longer a text, the more of it has been said.
WINDOW = 1000
# Makes the same run in two windows two numbers.
_APART = np.uint64(0xD1B54A32D192ED03)
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
        parts, found = numbered_units(text)
        scale = DENSE if dense(parts) else 1
        sizes = np.fromiter(map(len, parts), np.int64, len(parts))
        kind = "characters" if scale > 1 else "words"
        for size, limit in self.top.items():
            share = top(found, sizes, size * scale)
            if share > limit:
                return f"the most frequent run of {size * scale} {kind} {share:.2f} > {limit:.2f}"
        shares = repeated_shares(found, sizes, [size * scale for size in self.repeated])
        for (size, limit), share in zip(self.repeated.items(), shares, strict=True):
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
    counts = np.bincount(first_places(runs))
    most = int(counts.max())
    if most < 2:
        return 0.0
    ends = np.concatenate([[0], np.cumsum(sizes)])
    lengths = (ends[size:] - ends[:-size])[: len(counts)]
    return float(min(1.0, most * lengths[counts == most].max() / ends[-1]))


def repeated_shares(
    found: np.ndarray, sizes: np.ndarray, lengths: Sequence[int], window: int = WINDOW
) -> Iterator[float]:
    """Yield the share of the characters in runs that stand earlier too, for rising lengths.

    Each character counts once, and only runs within the same window are the same.

    0 repeats no run; towards 1, everything after the beginning of each window has been said before.

    Source: rae21, appendix A1.1. Differs: what is counted is the repetition, not what is repeated;
    for Chinese, n words are taken as 3 n characters. Windows are Own: in a whole text the share
    grows with its length, and the limits are those of pages.

    Args:
        found: a number for each unit.
        sizes: characters of each unit.
        lengths: of runs, in units.
        window: units of a window.
    """
    count, total = len(found), int(sizes.sum())
    places = np.arange(count)
    for length in lengths:
        # A run stands twice only where the shorter one that it begins with does.
        ends = np.minimum(places - places % window + window, count)
        places = places[places + length <= ends]
        runs = windows(found, length)[places] + places.astype(np.uint64) // window * _APART
        first = first_places(runs)
        later = first != np.arange(len(places))
        edges = np.zeros(count + 1, np.int64)
        edges[places[later]] += 1
        edges[places[later] + length] -= 1
        covered = np.cumsum(edges)[:-1] > 0
        yield float(sizes[covered].sum() / total) if total else 0.0
        places = places[np.bincount(first, minlength=1)[first] > 1]
