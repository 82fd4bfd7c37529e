"""N-grams of a text: of words where words are apart, of characters where not."""

import re
from functools import lru_cache
from hashlib import blake2b

import numpy as np

from layerlab.data.normal_form import normal_form

# Han and kana, which are written without spaces; not the marks that stand between kana.
_KANA = "\u3040-\u309f\u30a1-\u30fa\u30fc-\u30ff"
DENSE = f"{_KANA}\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_UNIT = re.compile(rf"[{DENSE}]|[^\W_{DENSE}]+")
_SPACED = re.compile(rf"[^{DENSE}]+")
# Odd, so that no place of a window is lost modulo 2^64.
_BASE = 0x9E3779B97F4A7C15


def units(text: str) -> list[str]:
    """Return the words and single Han characters of a text, lower case and without punctuation.

    Differs: the source of the convention (brown20) knows words between spaces alone; Chinese and
    Japanese have none, so each of their characters is a unit.

    Example:
        >>> units("The “new” Civil Code: 民法典, ２０２１")
        ['the', 'new', 'civil', 'code', '民', '法', '典', '2021']
    """
    return _UNIT.findall(normal_form("NFKC", text).lower())


def dense(parts: list[str]) -> bool:
    """Return whether most units are single characters of a script without spaces.

    Example:
        >>> dense(units("民法典 2021")), dense(units("Civil Code 2021"))
        (True, False)
    """
    return 2 * len(_SPACED.sub("", "".join(parts))) > len(parts)


def join_units(parts: list[str]) -> str:
    """Join units as a reader writes them."""
    return re.sub(rf"(?<=[{DENSE}]) (?=[{DENSE}])", "", " ".join(parts))


def keys(parts: list[str]) -> np.ndarray:
    """Return a number of 64 bits for each unit, the same on every machine."""
    known = {part: _key(part) for part in set(parts)}
    return np.fromiter(map(known.__getitem__, parts), np.uint64, len(parts))


def windows(found: np.ndarray, size: int) -> np.ndarray:
    """Return a number of 64 bits for each run of `size` units; none where there are fewer.

    h_i = sum_k x_{i+k} B^(size-1-k) modulo 2^64.
    """
    if len(found) < size:
        return np.zeros(0, np.uint64)
    total, length = found, 1
    for digit in f"{size:b}"[1:]:  # a run is two of half its length, or those and one unit more
        total = total[:-length] * np.uint64(pow(_BASE, length, 1 << 64)) + total[length:]
        length *= 2
        if digit == "1":
            total = total[:-1] * np.uint64(_BASE) + found[length:]
            length += 1
    return total


@lru_cache(1)  # several rules ask for those of one document
def numbered_units(text: str) -> tuple[list[str], np.ndarray]:
    """Return the units of a text, and the number of each."""
    parts = units(text)
    return parts, keys(parts)


def first_places(numbers: np.ndarray) -> np.ndarray:
    """Return where each of some random numbers of 64 bits stands first.

    Example:
        >>> first_places(keys(["an", "ant", "an", "ant", "an"])).tolist()
        [0, 1, 0, 1, 0]
    """
    count = len(numbers)
    # A table by their first bits, whose places are filled from the end: what is first stays.
    bits = count.bit_length() + 2
    buckets = (numbers >> np.uint64(64 - bits)).astype(np.int64)
    table = np.empty(1 << bits, np.int64)
    table[buckets[::-1]] = np.arange(count)[::-1]
    first = table[buckets]
    others = np.flatnonzero(numbers[first] != numbers)
    if len(others):  # all that are equal to one of these are among them
        first[others] = others[first_places(numbers[others] * np.uint64(_BASE))]
    return first


@lru_cache(1 << 18)
def _key(part: str) -> int:
    return int.from_bytes(blake2b(part.encode(errors="replace"), digest_size=8).digest())
