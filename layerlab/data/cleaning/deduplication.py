"""Documents that are there already: the same, by a hash, or nearly so, by datasketch's MinHash."""

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


class ExactDuplicates:
    """Documents seen so far, white space apart: 16 bytes of hash each."""

    def __init__(self) -> None:
        self._seen: dict[bytes, int] = {}

    def place(self, text: str, number: int) -> int | None:
        """Return where the same text stood before; None where it is new, and then remembered."""
        key = blake2b(" ".join(text.split()).encode(), digest_size=16).digest()
        before = self._seen.setdefault(key, number)
        return None if before == number else before


class NearDuplicates:
    """Documents seen so far, by sketches of their runs of units.

    The Jaccard similarity of two documents' sets of shingles is estimated by the share of 128 hash
    minima in which they agree (standard error at most 0.044, so that chance decides on a pair at
    the threshold); candidates come from buckets of several minima each, which miss 5 in 100 pairs
    at a threshold of 0.8, and 1 in 100 at 0.85. All sketches stay in memory, nearly ten kilobytes a
    document.

    Source: broder97; the shingles of 5 words and the threshold of 0.8, lee22.
    """

    def __init__(self, threshold: int | float, size: int) -> None:
        """Begin without documents.

        Args:
            threshold: similarity from which a document counts as the same.
            size: units of a shingle.

        Raises:
            UserError: datasketch is not installed.
        """
        check_near()
        from datasketch import MinHash, MinHashLSH

        self.threshold, self.size = threshold, size
        self._blank: Any = MinHash(PERMUTATIONS, hashfunc=int)
        self._index: Any = MinHashLSH(
            min(threshold, CLOSEST), PERMUTATIONS, weights=(NEEDLESS, MISSED)
        )
        self._sketches: dict[int, Any] = {}

    def place(self, text: str, number: int) -> tuple[int, float] | None:
        """Return what a text nearly equals, and how nearly; None where it is new.

        A new text is remembered.
        """
        runs = windows(numbered_units(text)[1], self.size)
        if not len(runs):  # too short to have a single one
            return None
        sketch = self._blank.copy()
        # The better half of each number's bits.
        values = (runs >> 32).tolist()
        for first in range(0, len(values), CHUNK):
            sketch.update_batch(values[first : first + CHUNK])
        near = [(self._sketches[one].jaccard(sketch), -one) for one in self._index.query(sketch)]
        best = max(near, default=(0.0, 0))
        if best[0] >= self.threshold:
            return -best[1], float(best[0])
        self._index.insert(number, sketch)
        self._sketches[number] = sketch
        return None
