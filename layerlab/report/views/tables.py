"""Tables as JSON and back, exactly: dtypes, NaN and infinities survive, and the JSON is strict.

NaN is written as null and an infinity as the string "Infinity" or "-Infinity"; the dtype of the
column says which strings are numbers.
"""

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas.api import types

from layerlab.errors import UserError
from layerlab.records.json_values import json_text, json_values
from layerlab.system.csv_text import csv_of

DTYPES = ("int64", "float64", "bool", "str")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def tidy(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a copy in which every column has one of `DTYPES`, with rows counted from 0."""
    columns = {json_text(str(name)): _column(frame[name]) for name in frame.columns}
    return pd.DataFrame(columns, index=pd.RangeIndex(len(frame)))


def empty(per: Iterable[str], columns: Iterable[str]) -> pd.DataFrame:
    """Return the table of a measure without any row; its columns are there."""
    integers = {"sequence", "layer", "head"}
    names = {"model": "str"}
    names |= {name: "int64" if name in integers else "str" for name in per}
    names |= {name: "float64" for name in columns}
    return pd.DataFrame({name: pd.Series([], dtype=dtype) for name, dtype in names.items()})


def encode_table(frame: pd.DataFrame) -> dict[str, Any]:
    """Encode a tidy table as plain JSON values, column by column."""
    return {
        "columns": list(frame.columns),
        "dtypes": {str(name): str(frame[name].dtype) for name in frame.columns},
        "data": {str(name): _values(frame[name]) for name in frame.columns},
    }


def decode_table(name: str, entry: Mapping[str, Any]) -> pd.DataFrame:
    """Decode the table that `encode_table` wrote.

    Raises:
        UserError: it is not such a table.
    """
    if not _NAME.fullmatch(name):
        raise UserError(f"the report names a table {name!r:.80}: it was not written by layerlab")
    try:
        columns = {
            column: _series(entry["data"][column], entry.get("dtypes", {}).get(column))
            for column in entry["columns"]
        }
        if len({len(column) for column in columns.values()}) > 1:
            raise ValueError("its columns differ in length")
        return pd.DataFrame(columns)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise UserError(f"table {name!r} of the report is damaged: {error!s:.200}") from error


def write_tables(folder: Path, frames: Mapping[str, pd.DataFrame]) -> None:
    """Write every table as CSV (numbers with all their digits) and as Parquet."""
    folder.mkdir()
    for name, frame in frames.items():
        (folder / f"{name}.csv").write_text(csv_of(frame), encoding="utf-8", newline="")
        frame.to_parquet(folder / f"{name}.parquet", index=False)


def _series(values: list[Any], dtype: str | None) -> pd.Series:
    if dtype is None:
        return _column(pd.Series(values, dtype=object))
    if dtype not in DTYPES:
        raise ValueError(f"unknown column type {dtype!r}")
    if dtype == "float64":
        return pd.Series([math.nan if v is None else float(v) for v in values], dtype=dtype)
    return pd.Series(values, dtype=dtype)


def _values(column: pd.Series) -> list[Any]:
    if column.dtype == "float64":
        return json_values(column.tolist())
    if column.dtype == "str":
        return [None if pd.isna(text) else text for text in column.tolist()]
    return column.tolist()


def _column(column: pd.Series) -> pd.Series:
    values = column.reset_index(drop=True)
    if values.dtype in ("bool", "int64", "float64"):
        return values
    if types.is_bool_dtype(values.dtype) and not values.hasnans:
        return values.astype("bool")
    if types.is_integer_dtype(values.dtype) and not values.hasnans:
        return values.astype("int64")
    if types.is_numeric_dtype(values.dtype):
        return values.astype("float64")
    present = [entry for entry in values.tolist() if not pd.isna(entry)]
    if not present and len(values):
        return values.astype("float64")
    if present and all(isinstance(e, (bool, int, float, np.number, np.bool_)) for e in present):
        return _mix(values, present)
    return pd.Series(
        [None if pd.isna(e) else json_text(str(e)) for e in values.tolist()], dtype="str"
    )


def _mix(values: pd.Series, present: list[Any]) -> pd.Series:
    """Turn objects, perhaps with None among them, into numbers of one dtype."""
    if len(present) == len(values) and all(isinstance(e, (bool, np.bool_)) for e in present):
        return values.astype("bool")
    if len(present) == len(values) and all(isinstance(e, (int, np.integer)) for e in present):
        return values.astype("int64")
    return pd.Series([math.nan if pd.isna(e) else float(e) for e in values], dtype="float64")
