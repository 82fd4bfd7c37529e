"""How much the columns of a Parquet file unpack to, counted before a word is repeated in each row.

A file keeps a word once and names it in as many rows as it likes: three kilobytes can hold rows of
gigabytes. So texts are read with their dictionary.
"""

from typing import Any


def text_columns(metadata: Any) -> list[str]:
    """Return the paths of the columns of texts, which may be read with their dictionary."""
    columns = (metadata.schema.column(one) for one in range(metadata.num_columns))
    return [one.path for one in columns if one.physical_type == "BYTE_ARRAY"]


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
