"""Byte-pair encoding learned on distinct words: each once, weighed by how often it occurs.

The merges are those of the tokenizers library's trainer, ties and all, if that is handed every
word as often as it occurs. The time here does not grow with occurrences.

A token is made by one merge alone: no merge crossed its ends, so inside it all words went the same
way. So a pair with a new token is made at once wherever it ever stands, and gets rarer from then
on. One that is too rare then is never merged, and nothing of it is kept.
"""

from heapq import heappop, heappush

import numpy as np

# A pair is one number: its left token, and its right one in the lower bits.
_BITS = 32
_RIGHT = (1 << _BITS) - 1


class WordPairs:
    """Pairs of neighbours in words, how often each occurs, and in which words.

    Attributes:
        first: the number of the first new token.
        merges: pairs that were merged, in their order, each of which made a token.
    """

    def __init__(
        self, symbols: np.ndarray, lengths: np.ndarray, counts: np.ndarray, least: int
    ) -> None:
        """Take the tokens of all words, one after another, and the length and count of each.

        Args:
            least: times that a pair has to occur.
        """
        self.symbols, self.lengths, self.counts, self.least = symbols, lengths, counts, least
        self.starts = np.cumsum(lengths) - lengths
        self.merges: list[tuple[int, int]] = []
        self.first = int(symbols.max(initial=0)) + 1
        self._totals: dict[int, int] = {}
        self._words: dict[int, np.ndarray] = {}
        # Less the count, which may be out of date, and the pair.
        self._queue: list[tuple[int, int]] = []
        row = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
        inside = np.flatnonzero(row[1:] == row[:-1])
        pairs = symbols[inside].astype(np.int64) << _BITS | symbols[inside + 1]
        self._add(pairs, row[inside], counts[row[inside]])

    def merge(self) -> bool:
        """Merge the most frequent pair, and return whether there was any that is frequent enough.

        Of equally frequent ones it is that whose left token is older, then whose right one is.
        """
        while self._queue:
            less, pair = heappop(self._queue)
            total = self._totals[pair]
            if total != -less:
                if total >= self.least:
                    heappush(self._queue, (-total, pair))
                continue
            left, right = pair >> _BITS, pair & _RIGHT
            self.merges.append((left, right))
            del self._totals[pair]
            self._join(left, right, np.unique(self._words.pop(pair)))
            return True
        return False

    def _join(self, left: int, right: int, words: np.ndarray) -> None:
        """Join a pair wherever it stands in these words, from the left on."""
        token = self.first + len(self.merges) - 1
        lengths = self.lengths[words]
        slots = _slots(self.starts[words], lengths)
        symbols, row = self.symbols[slots], np.repeat(np.arange(len(words)), lengths)
        same = row[1:] == row[:-1]
        at = np.flatnonzero((symbols[:-1] == left) & (symbols[1:] == right) & same)
        if left == right:
            at = at[_alternate(at)]
        before, behind = at - 1, np.minimum(at + 2, len(row) - 1)
        has_left = (at > 0) & (row[before] == row[at])
        has_right = (at + 2 < len(row)) & (row[behind] == row[at])
        older, newer = symbols[before].astype(np.int64), symbols[behind].astype(np.int64)
        older[1:][at[1:] == at[:-1] + 2] = token
        gone = np.concatenate([older[has_left] << _BITS | left, right << _BITS | newer[has_right]])
        made = np.concatenate([older[has_left] << _BITS | token, token << _BITS | newer[has_right]])
        where = words[np.concatenate([row[at][has_left], row[at][has_right]])]
        kept = np.ones(len(row), bool)
        kept[at + 1] = False
        symbols[at] = token
        lengths = lengths - np.bincount(row[at], minlength=len(words))
        self.symbols[_slots(self.starts[words], lengths)] = symbols[kept]
        self.lengths[words] = lengths
        weights = self.counts[where]
        # In a run of the pair, some of what a token made is gone at once with the next one.
        own = (gone >> _BITS == token) | (gone & _RIGHT == token)
        self._add(
            np.concatenate([made, gone[own]]),
            np.concatenate([where, where[own]]),
            np.concatenate([weights, -weights[own]]),
        )
        pairs, place = np.unique(gone[~own], return_inverse=True)
        less = np.zeros(len(pairs), np.int64)
        np.add.at(less, place, weights[~own])
        for pair, total in zip(pairs.tolist(), less.tolist(), strict=True):
            if pair in self._totals:
                self._totals[pair] -= total

    def _add(self, pairs: np.ndarray, words: np.ndarray, weights: np.ndarray) -> None:
        """Enter pairs that are new, but for those that are too rare."""
        order = np.argsort(pairs, kind="stable")
        pairs, words, weights = pairs[order], words[order], weights[order]
        begins = np.flatnonzero(np.diff(pairs, prepend=-1))
        if not len(begins):
            return
        totals = np.add.reduceat(weights, begins)
        ends = np.append(begins[1:], len(pairs))
        often = totals >= self.least
        found = (pairs[begins], totals, begins, ends)
        for pair, total, begin, end in zip(*(one[often].tolist() for one in found), strict=True):
            self._totals[pair] = total
            self._words[pair] = words[begin:end].copy()
            heappush(self._queue, (-total, pair))


def _slots(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the places of the tokens of some words."""
    ends = np.cumsum(lengths)
    return np.arange(lengths.sum()) + np.repeat(starts - (ends - lengths), lengths)


def _alternate(at: np.ndarray) -> np.ndarray:
    """Return which places of a pair of equals are joined: each second one of a run."""
    begins = np.diff(at, prepend=-2) > 1
    run = np.flatnonzero(begins)[np.cumsum(begins) - 1]
    return (np.arange(len(at)) - run) % 2 == 0
