"""Byte-pair encoding learned on distinct words: each once, weighed by how often it occurs.

The merges are those of the tokenizers library's trainer, ties and all, if that is handed every
word as often as it occurs. The time here does not grow with occurrences.
"""

from heapq import heappop, heappush

import numpy as np

# A pair is one number: its left token, and its right one in the lower bits.
_BITS = 32
# Pairs of the words as they are given that enter the queue at once.
CHUNK = 1 << 12


class WordPairs:
    """Pairs of neighbours in words, how often each occurs, and in which words.

    An entry of the queue is a pair with the words in which it was new when it entered. As in the
    library the count of an entry may be out of date, and is looked up when its turn comes; a pair
    that was merged keeps its count; and where a pair is merged again, the later place is its own.

    Attributes:
        made: the number of each new token, by the tokens that it consists of.
        merges: pairs that were merged, in their order.
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
        self.made: dict[tuple[int, ...], int] = {}
        self.merges: dict[tuple[int, int], None] = {}
        self._first = int(symbols.max(initial=0)) + 1
        self._parts: list[tuple[int, ...]] = []
        # Pairs of given tokens: sorted, how often, and in which words.
        self._given, self._totals, self._begins, self._where = _index(symbols, lengths, counts)
        self._order = np.lexsort((self._given, -self._totals))
        self._due, self._entered = self._totals[self._order], 0
        # Counts of the other pairs, and the words of each entry in the queue that holds one.
        self._fresh: dict[int, int] = {}
        self._words: list[np.ndarray] = []
        # Less the count, the pair, and the place of its words; that of a given pair is below 0.
        self._queue: list[tuple[int, int, int]] = []
        # Entries that are too rare for the queue until it has no others.
        self._rare: list[tuple[int, int, np.ndarray]] = []

    def parts(self, number: int) -> tuple[int, ...]:
        """Return the tokens, as they were given, that a token consists of."""
        return self._parts[number - self._first] if number >= self._first else (number,)

    def merge(self) -> bool:
        """Merge the most frequent pair, and return whether there was any that is frequent enough.

        Of equally frequent ones it is that whose left token is older, then whose right one is.
        """
        entry = self._pop()
        if entry is None:
            return False
        pair, words = entry
        left, right = pair >> _BITS, pair & ((1 << _BITS) - 1)
        parts = self.parts(left) + self.parts(right)
        token = self.made.setdefault(parts, self._first + len(self._parts))
        if token == self._first + len(self._parts):
            self._parts.append(parts)
        self.merges.pop((left, right), None)
        self.merges[left, right] = None
        self._join(left, right, token, np.unique(words))
        return True

    def _pop(self) -> tuple[int, np.ndarray] | None:
        """Return the pair whose turn it is and its words, unless it is too rare."""
        while True:
            self._enter()
            if not self._queue:
                return None
            less, pair, place = heappop(self._queue)
            total = self._count(pair)
            if total != -less:
                heappush(self._queue, (-total, pair, place))
            elif total < self.least:
                heappush(self._queue, (-total, pair, place))
                return None
            elif place >= 0:
                words, self._words[place] = self._words[place], self._words[place][:0]
                return pair, words
            else:
                return pair, self._where[slice(*self._begins[~place : ~place + 2])]

    def _enter(self) -> None:
        """Put those into the queue that may come before all that are in it."""
        while self._entered < len(self._due):
            if self._queue and -self._queue[0][0] > self._due[self._entered]:
                break
            chosen = self._order[self._entered : self._entered + CHUNK]
            self._entered += CHUNK
            found = (-self._totals[chosen], self._given[chosen], ~chosen)
            for entry in zip(*(one.tolist() for one in found), strict=True):
                heappush(self._queue, entry)
        if self._rare and (not self._queue or -self._queue[0][0] < self.least):
            for total, pair, words in self._rare:
                self._push(total, pair, words)
            self._rare = []

    def _push(self, total: int, pair: int, words: np.ndarray) -> None:
        heappush(self._queue, (-total, pair, len(self._words)))
        self._words.append(words)

    def _count(self, pair: int) -> int:
        if pair in self._fresh:
            return self._fresh[pair]
        place = np.searchsorted(self._given, pair)
        known = place < len(self._given) and self._given[place] == pair
        return int(self._totals[place]) if known else 0

    def _join(self, left: int, right: int, token: int, words: np.ndarray) -> None:
        """Join a pair wherever it stands in these words, from the left on."""
        lengths = self.lengths[words]
        slots = _slots(self.starts[words], lengths)
        symbols, row = self.symbols[slots], np.repeat(np.arange(len(words)), lengths)
        same = row[1:] == row[:-1]
        at = np.flatnonzero((symbols[:-1] == left) & (symbols[1:] == right) & same)
        if left == right:
            at = at[_alternate(at)]
        if not len(at):
            return
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
        lengths = lengths - np.bincount(row[at], minlength=len(words)).astype(lengths.dtype)
        self.symbols[_slots(self.starts[words], lengths)] = symbols[kept]
        self.lengths[words] = lengths
        weights = self.counts[where]
        self._change(np.concatenate([gone, made]), np.concatenate([-weights, weights]))
        for pair, several in zip(*_group(made, where), strict=True):
            total = self._count(pair)
            if total >= self.least:
                self._push(total, pair, several)
            elif total > 0:
                self._rare.append((total, pair, several))

    def _change(self, pairs: np.ndarray, weights: np.ndarray) -> None:
        """Add to the counts of pairs."""
        pairs, place = np.unique(pairs, return_inverse=True)
        changes = np.zeros(len(pairs), np.int64)
        np.add.at(changes, place, weights)
        given = np.maximum(pairs >> _BITS, pairs & ((1 << _BITS) - 1)) < self._first
        self._totals[np.searchsorted(self._given, pairs[given])] += changes[given]
        for pair, change in zip(pairs[~given].tolist(), changes[~given].tolist(), strict=True):
            total = self._fresh.pop(pair, 0) + change
            if total:
                self._fresh[pair] = total


def _index(
    symbols: np.ndarray, lengths: np.ndarray, counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return all pairs in order, their counts, and where the words of each begin in a list."""
    row = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    inside = np.flatnonzero(row[1:] == row[:-1])
    pairs = symbols[inside].astype(np.int64) << _BITS | symbols[inside + 1]
    order = np.argsort(pairs, kind="stable")
    pairs, where = pairs[order], row[inside[order]]
    begins = np.flatnonzero(np.diff(pairs, prepend=-1))
    totals = np.add.reduceat(counts[where], begins) if len(begins) else begins
    return pairs[begins], totals, np.append(begins, len(where)), where


def _slots(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the places of the tokens of some words."""
    ends = np.cumsum(lengths)
    return np.arange(lengths.sum()) + np.repeat(starts - (ends - lengths), lengths)


def _alternate(at: np.ndarray) -> np.ndarray:
    """Return which places of a pair of equals are joined: each second one of a run."""
    begins = np.diff(at, prepend=-2) > 1
    run = np.flatnonzero(begins)[np.cumsum(begins) - 1]
    return (np.arange(len(at)) - run) % 2 == 0


def _group(pairs: np.ndarray, words: np.ndarray) -> tuple[list[int], list[np.ndarray]]:
    """Return the distinct pairs, and the words of each."""
    order = np.argsort(pairs, kind="stable")
    pairs, words = pairs[order], words[order]
    begins = np.flatnonzero(np.diff(pairs, prepend=-1))
    return pairs[begins].tolist(), np.split(words, begins)[1:]
