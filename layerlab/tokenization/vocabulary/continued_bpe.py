"""New merges behind those of a base: what a BPE learns on words whose letters are its tokens."""

from collections.abc import Callable, Mapping
from itertools import chain, islice

import numpy as np

from layerlab.tokenization.bpe_file import BpeFile, Merge
from layerlab.tokenization.vocabulary.word_pairs import WordPairs

# Words that are encoded at once.
CHUNK = 1 << 16


class Continuation:
    """Words in the tokens of a base, and the merges that are learned on them.

    A token that no merge may have a part in parts the words.
    """

    def __init__(self, found: BpeFile, counts: Mapping[str, int], least: int) -> None:
        """Cut words as the base does; a pair of tokens has to occur `least` times."""
        self.found, self.least = found, least
        self._pairs = WordPairs(*_cut(found, counts), least)

    def merges(self, number: int, tell: Callable[[float], None]) -> list[Merge]:
        """Return the best merges in their order, as tokens; fewer where the words have no more.

        Args:
            number: of merges.
            tell: is told the share that is done.
        """
        pairs = self._pairs
        while len(pairs.merges) < number and pairs.merge():
            tell(len(pairs.merges) / number)
        tokens = {place: token for token, place in self.found.vocab.items()}
        found: list[Merge] = []
        for place, (left, right) in enumerate(pairs.merges[:number], pairs.first):
            found.append((tokens[left], tokens[right]))
            tokens[place] = tokens[left] + tokens[right]
        return found


def _cut(found: BpeFile, counts: Mapping[str, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the tokens of words of two or more, their lengths, and how often each word occurs."""
    bare = found.bare()
    fixed = np.zeros(max(found.vocab.values()) + 1, bool)
    fixed[[found.vocab[token] for token in found.fixed if token in found.vocab]] = True
    words, every = iter(counts), np.fromiter(counts.values(), np.int64, len(counts))
    parts, done = [], 0
    while chunk := list(islice(words, CHUNK)):
        cut = [one.ids for one in bare.encode_batch_fast(chunk, add_special_tokens=False)]
        lengths = np.fromiter(map(len, cut), np.int64, len(cut))
        ids = np.fromiter(chain.from_iterable(cut), np.int32, lengths.sum())
        place = np.repeat(np.arange(done, done + len(cut)), lengths)
        done += len(cut)
        begins = fixed[ids]
        begins[1:] |= begins[:-1].copy() | (place[1:] != place[:-1])
        number = np.cumsum(begins)
        lengths = np.bincount(number, ~fixed[ids]).astype(np.int64)
        long = ~fixed[ids] & (lengths[number] > 1)
        first = np.flatnonzero(long & np.diff(number, prepend=-1).astype(bool))
        parts.append((ids[long], lengths[number[first]], every[place[first]]))
    symbols, lengths, weights = (np.concatenate(kind) for kind in zip(*parts, strict=True))
    return symbols, lengths, weights
