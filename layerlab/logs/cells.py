"""Reads the cells of a table as numbers, or as names."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from layerlab.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

WAYS = {
    r"'\d{1,3}(,\d{3})+'": "write 10000 for 10,000, or ",
    r"'[-+]?\d+,\d+'": "write 3.21 for 3,21, or ",
    r"'(NA|N/A|None|null|NULL)'": "leave a cell empty, or write nan in it, or ",
}


def list_numeric(table: "pa.Table") -> list[str]:
    """Return the columns that hold numbers."""
    return [one.name for one in table.schema if is_numeric(one.type)]


def is_numeric(kind: "pa.DataType") -> bool:
    """Return whether cells of a column are numbers."""
    import pyarrow as pa

    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


def read_numbers(column: "pa.ChunkedArray", name: str, option: str, path: Path) -> np.ndarray:
    """Return a column as float64, NaN where it is empty.

    Raises:
        UserError: it holds something else than numbers.
    """
    import pyarrow as pa

    try:
        if pa.types.is_boolean(column.type):
            raise pa.ArrowInvalid("true and false")
        found: np.ndarray = column.cast(pa.float64()).to_numpy()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        why = " ".join(str(error).split())
        way = next((remedy for pattern, remedy in WAYS.items() if re.search(pattern, why)), "")
        way = "the head stands among the rows: leave it out, or " if f"'{name}'" in why else way
        raise UserError(
            f"the column {name!r} of {path} holds something else than numbers: {why}; {way}name "
            f"another with {option} COLUMN"
        ) from None
    return found


def read_words(table: "pa.Table", column: str | None, otherwise: str | None) -> list[Any]:
    """Return a column as names, None where it is empty; the same name for all without a column."""
    if column is None:
        return [otherwise] * table.num_rows
    cells = table[column].to_pylist()
    # A gap in a column of floats is a NaN in some files.
    return [None if one is None or one != one else _word(one) for one in cells]


def _word(value: Any) -> str:
    """Return a name as it is written; 3.0, as tables with gaps have it, is 3."""
    if isinstance(value, bytes):  # of a table that is not in UTF-8
        value = value.decode("latin-1")
    integral = isinstance(value, float) and value.is_integer()
    return str(int(value)) if integral else str(value).strip()
