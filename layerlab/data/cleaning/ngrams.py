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
_SINGLE = re.compile(rf"[{DENSE}]")
# Odd, so that no place of a window is lost modulo 2^64.
_BASE = np.uint64(0x9E3779B97F4A7C15)


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
    return 2 * sum(bool(_SINGLE.match(part)) for part in parts) > len(parts)


def join_units(parts: list[str]) -> str:
    """Join units as a reader writes them."""
    return re.sub(rf"(?<=[{DENSE}]) (?=[{DENSE}])", "", " ".join(parts))


def keys(parts: list[str]) -> np.ndarray:
    """Return a number of 64 bits for each unit, the same on every machine."""
    return np.fromiter(map(_key, parts), np.uint64, len(parts))


def windows(found: np.ndarray, size: int) -> np.ndarray:
    """Return a number of 64 bits for each run of `size` units; none where there are fewer.

    h_i = sum_k x_{i+k} B^(size-1-k) modulo 2^64.
    """
    count = len(found) - size + 1
    if count < 1:
        return np.zeros(0, np.uint64)
    total = np.zeros(count, np.uint64)
    for index in range(size):
        total = total * _BASE + found[index : index + count]
    return total


@lru_cache(1 << 18)
def _key(part: str) -> int:
    return int.from_bytes(blake2b(part.encode(errors="replace"), digest_size=8).digest())
