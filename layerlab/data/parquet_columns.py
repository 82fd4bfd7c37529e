"""Columns of a Parquet file, and their unpacked size before words are repeated in each row.

A file keeps a word once and names it in as many rows as it likes: three kilobytes can hold rows of
gigabytes. Of a column with one text a row so few rows are read at once that they find room; a list
may name a word any number of times, so texts in lists are read with their dictionary.
"""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerlab.data.archives import ROW, Allowance
from layerlab.errors import UserError
from layerlab.records.parquet.pages import page_sizes
from layerlab.system.files import check_regular
from layerlab.validation import find_twice, short_repr

if TYPE_CHECKING:
    import pyarrow as pa

# Of a table; a word that is kept once may stand in each of them.
ROWS_AT_ONCE = 64
# Rows that are unpacked at once, and about how many bytes of them: for each such batch all words of
# a group that were met before are copied.
LONGEST_BATCH, BATCH_BYTES = 4096, 2**26


def read_batches(path: Path, field: str | None) -> Iterator["pa.RecordBatch"]:
    """Read the rows of a file, a few at a time, whose texts in lists are still in their dictionary.

    Args:
        field: that is read; None where all are.

    Raises:
        UserError: it unpacks to more than is allowed, or lacks the field.
        ValueError: it is no Parquet that can be read.
        ArrowException: likewise.
    """
    import pyarrow.parquet

    check_regular(path)
    allowance = Allowance(path)
    # Words stay in their dictionary until they are counted: each row may name the longest.
    metadata = pyarrow.parquet.read_metadata(path)
    text_names, sizes = text_columns(metadata), page_sizes(path, metadata)
    allowance.check(max(sizes))
    usual = max(ROWS_AT_ONCE, BATCH_BYTES * metadata.num_rows // max(1, sizes.total))
    count = min(LONGEST_BATCH, usual, max(1, allowance.most // max(1, sizes.largest)))
    with pyarrow.parquet.ParquetFile(path, read_dictionary=text_names) as file:
        check_columns(str(path), field, file.schema_arrow.names)
        columns = None if field is None else [field]
        # No batch reaches over two groups, whose dictionaries differ.
        every = [[one] for one in range(metadata.num_row_groups)]
        options: dict[str, Any] = {"batch_size": count, "columns": columns}
        for batch in chain.from_iterable(
            file.iter_batches(row_groups=group, **options) for group in every
        ):
            allowance.spend(ROW * len(batch) + sum(map(unpacked_size, batch.columns)))
            for first in range(0, len(batch), ROWS_AT_ONCE):
                yield batch.slice(first, ROWS_AT_ONCE)


def text_columns(metadata: Any) -> list[str]:
    """Return the paths of the columns of texts in lists, which are read with their dictionary.

    Where a text begins as the one before it, none can be made. One of all texts of a column would
    grow with each batch, and is copied for it: a million rows in one group would take hours.
    """
    columns = (metadata.schema.column(one) for one in range(metadata.num_columns))
    groups = [metadata.row_group(one) for one in range(metadata.num_row_groups)]
    delta = {
        group.column(one).path_in_schema
        for group in groups
        for one in range(metadata.num_columns)
        if any(kind.startswith("DELTA") for kind in group.column(one).encodings)
    }
    listed = [one for one in columns if one.max_repetition_level]
    texts = [one.path for one in listed if one.physical_type == "BYTE_ARRAY"]
    return [path for path in texts if path not in delta]


def unpacked_size(column: Any) -> int:
    """Return the bytes that a column takes when each row repeats its word."""
    from pyarrow import compute, types

    if types.is_dictionary(column.type):
        lengths = compute.binary_length(column.dictionary.cast("large_binary"))
        text_bytes = compute.sum(lengths.take(column.indices)).as_py()
        return int(text_bytes or 0) + int(column.indices.nbytes)
    if types.is_struct(column.type):
        return sum(map(unpacked_size, column.flatten()))
    if types.is_list(column.type) or types.is_large_list(column.type):
        return unpacked_size(column.flatten()) + int(column.offsets.nbytes)
    return int(column.nbytes)


def check_columns(path: str, field: str | None, columns: list[str]) -> None:
    """Refuse a table without the field, or with two of one name: a row has room for the last.

    Args:
        field: that is read; None where all are.

    Raises:
        UserError: it is such a table.
    """
    if field is not None and field not in columns:
        raise fieldless(path, field, columns)
    if twice := find_twice(one for one in columns if field in (None, one)):
        raise UserError(f"{path} has two columns called {short_repr(twice)}; leave one out")


def fieldless(location: str, field: str, columns: list[str]) -> UserError:
    """Return the error about rows without a field, which names another."""
    hint = f'; write field = "{columns[0]}"' if columns else ""
    return UserError(
        f"{location} has no field {field!r}; it has {', '.join(columns) or 'none'}{hint}"
    )
