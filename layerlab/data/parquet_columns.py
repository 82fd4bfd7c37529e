"""How much the columns of a Parquet file unpack to, counted before a word is repeated in each row.

A file keeps a word once and names it in as many rows as it likes: three kilobytes can hold rows of
gigabytes. So texts are read with their dictionary.
"""

from typing import Any

from layerlab.errors import UserError
from layerlab.validation import find_twice, short_repr


def text_columns(metadata: Any) -> list[str]:
    """Return the paths of the columns of texts, which may be read with their dictionary.

    Where a text begins as the one before it, none can be made.
    """
    columns = (metadata.schema.column(one) for one in range(metadata.num_columns))
    groups = [metadata.row_group(one) for one in range(metadata.num_row_groups)]
    delta = {
        group.column(one).path_in_schema
        for group in groups
        for one in range(metadata.num_columns)
        if any(kind.startswith("DELTA") for kind in group.column(one).encodings)
    }
    texts = [one.path for one in columns if one.physical_type == "BYTE_ARRAY"]
    return [path for path in texts if path not in delta]


def unpacked_size(column: Any) -> int:
    """Return the bytes that a column takes when each row repeats its word."""
    from pyarrow import compute, types

    if types.is_dictionary(column.type):
        lengths = compute.binary_length(column.dictionary.cast("large_binary"))
        words = compute.sum(lengths.take(column.indices)).as_py()
        return int(words or 0) + int(column.indices.nbytes)
    if types.is_struct(column.type):
        return sum(map(unpacked_size, column.flatten()))
    if types.is_list(column.type) or types.is_large_list(column.type):
        return unpacked_size(column.flatten()) + int(column.offsets.nbytes)
    return int(column.nbytes)


def check_columns(path: str, field: str | None, known: list[str]) -> None:
    """Refuse a table without the field, or with two of one name: a row has room for the last.

    Args:
        field: that is read; None where all are.

    Raises:
        UserError: it is such a table.
    """
    if field is not None and field not in known:
        raise fieldless(path, field, known)
    if twice := find_twice(one for one in known if field in (None, one)):
        raise UserError(f"{path} has two columns called {short_repr(twice)}; leave one out")


def fieldless(place: str, field: str, known: list[str]) -> UserError:
    """Return the error about rows without a field, which names another."""
    hint = f'; write field = "{known[0]}"' if known else ""
    return UserError(f"{place} has no field {field!r}; it has {', '.join(known) or 'none'}{hint}")
