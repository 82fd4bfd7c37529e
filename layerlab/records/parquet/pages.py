"""Unpacked sizes of the pages of a Parquet file, by the head of each page.

pyarrow makes room for a page by its own head, whatever the end of the file says of its size: three
kilobytes that claim a thousand bytes may hold gigabytes.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

_NESTED = 8  # structures in a head; real ones have three
_DELTA = 7  # the encoding by which each text begins like the one before it
_DATA, _DICTIONARY, _SECOND = 5, 7, 8  # fields of the heads of pages
# What a value of a list takes, in memory: its number, its two levels.
_VALUE = 12


class PageSizes(NamedTuple):
    """Sizes to which the pages of a file unpack, in bytes.

    Attributes:
        total: all of them, with what the values of lists take.
        largest: as long as a row may be, lists apart: the longest value of each column.
    """

    total: int
    largest: int


def page_sizes(path: Path, metadata: Any) -> PageSizes:
    """Return what the pages of a file unpack to; nothing is unpacked.

    Args:
        metadata: of the file, as pyarrow reads it.

    Raises:
        ValueError: its chunks or pages are not where they should be.
    """
    columns = [metadata.schema.column(one) for one in range(metadata.num_columns)]
    total, left = 0, path.stat().st_size
    largest = [max(0, one.length) for one in columns]  # of values that all have the same length
    with path.open("rb") as file:
        for group in map(metadata.row_group, range(metadata.num_row_groups)):
            for number, column in enumerate(columns):
                chunk = group.column(number)
                left -= chunk.total_compressed_size
                if chunk.total_compressed_size < 0 or left < 0:
                    raise ValueError("its columns have more bytes than the file")
                longest = max(0, column.length)
                for size, count, encoding in _pages(file, chunk):
                    width = max(_VALUE, longest, size if encoding == _DELTA else 0)
                    total += size + (count * width if column.max_repetition_level else 0)
                    largest[number] = max(largest[number], size)
    return PageSizes(total, sum(largest))


def _pages(file: IO[bytes], chunk: Any) -> Iterator[tuple[int, int, int]]:
    """Yield size, number of values and encoding of each page."""
    dictionary = chunk.dictionary_page_offset if chunk.has_dictionary_page else 0
    # Where there are no rows there is no page of data, and its place is 0.
    at = min((one for one in (dictionary, chunk.data_page_offset) if one > 0), default=0)
    end = at + chunk.total_compressed_size
    while at < end:
        file.seek(at)
        head = _structure(file, _NESTED)
        size, packed = head.get(2, -1), head.get(3, -1)
        if not isinstance(size, int) or not isinstance(packed, int) or min(size, packed) < 0:
            raise ValueError(f"the page at byte {at:,} has no size")
        kinds = (head.get(one) for one in (_DATA, _DICTIONARY, _SECOND))
        values = next((one for one in kinds if isinstance(one, dict)), {})
        yield size, values.get(1, 0), values.get(4 if _SECOND in head else 2, 0)
        at = file.tell() + packed


def _structure(file: IO[bytes], depth: int) -> dict[int, Any]:
    """Read a structure of Thrift's compact protocol: its numbers, and structures of such."""
    found: dict[int, Any] = {}
    field = 0
    if not depth:
        raise ValueError("the head of a page is nested too deeply")
    while kind := _byte(file):
        step, kind = kind >> 4, kind & 15
        field = field + step if step else _integer(file)
        if kind in (4, 5, 6):
            found[field] = _integer(file)
        elif kind == 12:
            found[field] = _structure(file, depth - 1)
        elif kind == 8:
            file.seek(_natural(file), 1)
        elif kind in (3, 7):
            file.seek(1 if kind == 3 else 8, 1)
        elif kind not in (1, 2):  # true and false
            raise ValueError(f"the head of a page has a field of kind {kind}")
    return found


def _integer(file: IO[bytes]) -> int:
    value = _natural(file)
    return (value >> 1) ^ -(value & 1)


def _natural(file: IO[bytes]) -> int:
    found = 0
    for shift in range(0, 70, 7):
        byte = _byte(file)
        found |= (byte & 127) << shift
        if byte < 128:
            return found
    raise ValueError("the head of a page has a number without end")


def _byte(file: IO[bytes]) -> int:
    if not (byte := file.read(1)):
        raise ValueError("it ends in the head of a page")
    return byte[0]
