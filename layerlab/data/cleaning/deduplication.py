"""Documents that are there already: the same, by a hash, or nearly so, by datasketch's MinHash."""

import random
from functools import lru_cache
from hashlib import blake2b
from importlib.util import find_spec
from typing import Any

from layerlab.data.cleaning.ngrams import numbered_units, windows
from layerlab.errors import UserError, describe_install

PERMUTATIONS = 128
# Shingles that are hashed at once: each takes a number for each permutation, and a processor's
# cache is to hold them.
CHUNK = 1 << 12
# Buckets look for no closer pairs, of which they would miss more, and for 1 there are none; what
# they find is counted anyway.
CLOSEST = 0.95
# How much pairs that buckets find for nothing, and those that they miss, count where buckets are
# sized. What is found is compared anyway; at a threshold of 0.8 equal weights would miss 60 % of
# the pairs of that similarity, and these miss 5 %.
NEEDLESS, MISSED = 0.05, 0.95


def check_near() -> None:
    """Check at once whether near duplicates can be looked for.

    Raises:
        UserError: datasketch is not installed.
    """
    if find_spec("datasketch") is None:
        raise UserError(
            "near duplicates are found by datasketch, which is not installed; "
            f"{describe_install('clean')}, or write near_duplicate_threshold = 0, which looks for "
            "none"
        )


def hash_words(text: str) -> bytes:
    """Return 16 bytes that two texts share where they are the same, white space apart."""
    return blake2b(" ".join(text.split()).encode(), digest_size=16).digest()


def sketch(text: str, size: int) -> Any:
    """Return the hash minima of a text's runs of so many units; None where it has no single run."""
    from datasketch import LeanMinHash

    runs = windows(numbered_units(text)[1], size)
    if not len(runs):
        return None
    found = _blank().copy()
    # The better half of each number's bits.
    values = (runs >> 32).tolist()
    for first in range(0, len(values), CHUNK):
        found.update_batch(values[first : first + CHUNK])
    return LeanMinHash(found)


@lru_cache(1)
def _blank() -> Any:
    from datasketch import MinHash

    return MinHash(PERMUTATIONS, hashfunc=int)


class NearDuplicates:
    """Documents seen so far, by sketches of their runs of units.

    The Jaccard similarity of two documents' sets of shingles is estimated by the share of 128 hash
    minima in which they agree (standard error at most 0.044, so that chance decides on a pair at
    the threshold); candidates come from buckets of several minima each, which miss 5 in 100 pairs
    at a threshold of 0.8, and 1 in 100 at 0.85. All sketches stay in memory, nearly ten kilobytes a
    document.

    Source: broder97; the shingles of 5 words and the threshold of 0.8, lee22.
    """

    def __init__(self, threshold: int | float) -> None:
        """Begin without documents.

        Args:
            threshold: similarity from which a document counts as the same.

        Raises:
            UserError: datasketch is not installed.
        """
        check_near()
        from datasketch import MinHashLSH

        self.threshold = threshold
        before = random.getstate()
        self._index: Any = MinHashLSH(
            min(threshold, CLOSEST), PERMUTATIONS, weights=(NEEDLESS, MISSED)
        )
        random.setstate(before)  # datasketch draws a name
        self._sketches: dict[int, Any] = {}

    def place(self, found: Any, number: int) -> tuple[int, float] | None:
        """Return what a sketch nearly equals, and how nearly; None where it is new.

        A new one is remembered.
        """
        near = [(self._sketches[one].jaccard(found), -one) for one in self._index.query(found)]
        best = max(near, default=(0.0, 0))
        if best[0] >= self.threshold:
            return -best[1], float(best[0])
        self._index.insert(number, found)
        self._sketches[number] = found
        return None
