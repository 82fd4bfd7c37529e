"""Reads tables of readings: CSV, JSONL and Parquet, also as W&B and MLflow export them."""

import codecs
import io
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from layerlab.data.parquet_columns import read_batches
from layerlab.errors import UserError
from layerlab.logs.loss_names import LOSSES
from layerlab.records.parse import json_of
from layerlab.system.files import read_whole
from layerlab.validation import find_twice, short_repr

if TYPE_CHECKING:
    import pyarrow as pa

# Between two lines that are parsed together; whoever has it in his own waits longer.
MARK = b"layerlab reads a line by itself"
UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # as spreadsheets and PowerShell write
CELLS = 50_000_000  # of a table whose rows have names of their own


def decode(raw: bytes) -> str:
    """Return a text, as far as it is one; in UTF-16 where it says so."""
    return raw.decode("utf-16" if raw.startswith(UTF16) else "utf-8", "replace")


def read_csv(path: Path, text_columns: Collection[str] = ()) -> "pa.Table":
    """Read a table with a head, between commas, semicolons or tabs.

    Args:
        text_columns: columns, in lower case, whose values are names also where they look like
            numbers: 2.1 is not 2.10.

    Raises:
        UserError: it is none.
    """
    import pyarrow as pa
    from pyarrow import csv

    raw = read_whole(path)
    if raw.startswith(UTF16):
        try:
            raw = raw.decode("utf-16").encode()
        except UnicodeError as error:
            raise _unreadable(path, "table in UTF-16", error) from None
    head = raw.partition(b"\n")[0]
    between = max((b",", b"\t", b";"), key=head.count).decode()

    def parse(kinds: dict[str, pa.DataType]) -> pa.Table:
        return csv.read_csv(
            io.BytesIO(raw),
            # A column may be empty for longer than one of the usual blocks, and is of one kind.
            # Threads gain nothing in one block, and abort the process at its end beside torch.
            read_options=csv.ReadOptions(
                block_size=min(len(raw) + 1, 2**31 - 1), use_threads=False
            ),
            parse_options=csv.ParseOptions(delimiter=between),
            convert_options=csv.ConvertOptions(
                null_values=["", " "], strings_can_be_null=True, column_types=kinds
            ),
        )

    try:
        found = parse({})
        named = [one for one in found.schema if one.name.strip().lower() in text_columns]
        # Text that is not in UTF-8 is read as bytes.
        guessed = [one.name for one in named if one.type not in (pa.string(), pa.binary())]
        if guessed:
            found = parse(dict.fromkeys(guessed, pa.string()))
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        raise _unreadable(path, "table", error) from None
    return _check_names(found.rename_columns([one.strip() for one in found.column_names]), path)


def is_sheet(path: Path) -> bool:
    """Return whether a text begins with the head of a table, in which a loss has a usual name."""
    head, *_ = decode(read_whole(path)).splitlines() or [""]
    cells = [one.strip().strip('"').lower() for one in re.split("[,;\t]", head)]
    return len(cells) > 1 and any(one in LOSSES for one in cells)


def is_jsonl(path: Path) -> bool:
    """Return whether lines of a text are objects of JSON, with a loss under a usual name."""
    lines = [one for one in decode(read_whole(path)).lower().splitlines() if one.strip()]
    named = any(f'"{name}":' in one for one in lines for name in LOSSES)
    if not named or not all(one.startswith("{") for one in lines):
        return False
    try:
        return isinstance(json_of(lines[0]), dict)
    except ValueError:
        return False


def ends_within(path: Path) -> bool:
    """Return whether the last line of a text has no end: it may be cut off inside a number."""
    return not read_whole(path).rstrip(b"\0").endswith((b"\n", b"\r"))


def read_parquet(path: Path) -> "pa.Table":
    """Read a Parquet file.

    Raises:
        UserError: it is none, or unpacks to more than is allowed.
    """
    import pyarrow as pa
    from pyarrow import types

    try:
        # Each is counted by then, and its words may stand in every row.
        batches = [
            pa.RecordBatch.from_arrays(
                [
                    one.dictionary_decode() if types.is_dictionary(one.type) else one
                    for one in batch.columns
                ],
                batch.schema.names,
            )
            for batch in read_batches(path, None)
        ]
        if not batches:
            raise ValueError("it has no rows")
        return pa.Table.from_batches(batches).combine_chunks()
    except (pa.ArrowException, ValueError, OSError) as error:
        raise _unreadable(path, "Parquet file", error) from None


def read_jsonl(path: Path) -> "pa.Table":
    """Read a file with one JSON object a line.

    Raises:
        UserError: a line is none.
    """
    raw = read_whole(path)
    rows = _parse_together(raw)
    if rows is not None:
        return table_of(_flatten(rows, path) if raw.count(b"{") > len(rows) else rows, path)
    rows = []
    for number, line in enumerate(raw.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json_of(line.removeprefix(codecs.BOM_UTF8).decode())
        except ValueError as error:
            raise _unreadable(path, f"JSON object a line (line {number})", error) from None
        if not isinstance(row, dict):
            raise UserError(f"line {number} of {path} is {short_repr(row)}; expected an object")
        rows.append(row)
    return table_of(_flatten(rows, path), path)


def _flatten(rows: list[dict[str, Any]], path: Path) -> list[dict[str, Any]]:
    """Return objects in which {"eval": {"loss": 3}} is eval/loss, however deep.

    Raises:
        UserError: one has a name both ways.
    """
    found = []
    for row in rows:
        leaves = list(_leaves(row))
        found.append(dict(leaves))
        if len(found[-1]) < len(leaves):
            names = [name for name, _ in leaves]
            twice = next(name for name in names if names.count(name) > 1)
            raise UserError(
                f"a line of {path} has {short_repr(twice)} twice, by itself and in an object; "
                "leave one of them out"
            )
    return found


def _leaves(value: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, one in value.items():
        if isinstance(one, dict):
            yield from _leaves(one, f"{path}{name}/")
        else:
            yield f"{path}{name}", one


def _parse_together(raw: bytes) -> list[dict[str, Any]] | None:
    """Parse all lines as one array with a mark between any two, in half the time.

    None where a line is no object by itself: what two lines hold together would have the mark
    inside, and of two objects in one line there is none between.
    """
    if MARK in raw or b"\\u" in raw:  # which may spell the mark
        return None
    lines = [line for line in raw.split(b"\n") if line.strip()]
    try:
        found = json_of((b"[" + (b',"%b",' % MARK).join(lines) + b"]").decode())
    except ValueError:
        return None
    rows, mark = found[::2], MARK.decode()
    alone = len(rows) == len(lines) and all(one == mark for one in found[1::2])
    return rows if alone and all(isinstance(one, dict) for one in rows) else None


def table_of(rows: list[dict[str, Any]], path: Path) -> "pa.Table":
    """Return objects as a table: a column for each name whose values are numbers or texts.

    Raises:
        UserError: it has more than `CELLS`, or a value that a table has no room for.
    """
    import pyarrow as pa

    names = dict.fromkeys(name for row in rows for name in row)
    if len(names) * len(rows) > CELLS:
        raise UserError(
            f"{path} has {len(rows):,} entries with {len(names):,} names in all; expected at most "
            f"{CELLS:,} values: keep the names that tell step, loss, arm and seed"
        )
    try:
        columns = {name: _column(*one, len(rows)) for name, one in _gather(rows, names)}
        return pa.table({name: one for name, one in columns.items() if one is not None})
    except (OverflowError, UnicodeEncodeError) as error:  # a number of 400 digits; half a character
        raise _unreadable(path, "table", error) from None


def _gather(
    rows: Sequence[Mapping[str, Any]], names: Collection[str]
) -> Iterator[tuple[str, tuple[Sequence[int], list[Any]]]]:
    """Yield each name with the rows that have a value of it, and those values."""
    if set(map(len, rows)) <= {len(names)}:
        columns = {name: [row[name] for row in rows] for name in names}
        if all(None not in values for values in columns.values()):
            yield from ((name, (range(len(rows)), values)) for name, values in columns.items())
            return
    # A row has few of many names: what it has is gathered, and nothing else looked at.
    cells: dict[str, tuple[list[int], list[Any]]] = {name: ([], []) for name in names}
    for index, row in enumerate(rows):
        for name, value in row.items():
            if value is not None:
                places, values = cells[name]
                places.append(index)
                values.append(value)
    yield from cells.items()


def _column(places: Sequence[int], values: list[Any], rows: int) -> "pa.Array | None":
    """Return a column with values in these rows; None where they are no numbers and no texts."""
    import pyarrow as pa

    kinds = set(map(type, values))
    if dict in kinds:
        return None
    # A seed of 64 bits is no float.
    large = int in kinds and any(2**53 < one < 2**64 for one in values if type(one) is int)
    kind = float if kinds <= {int, float} and not large else str
    found = pa.array(map(kind, values), pa.float64() if kind is float else pa.string())
    if len(values) == rows:
        return found
    chosen = np.zeros(rows, np.int64)
    chosen[places] = np.arange(len(values))
    lacking = np.ones(rows, bool)
    lacking[places] = False
    return found.take(pa.array(chosen, mask=lacking))


def _check_names(table: "pa.Table", path: Path) -> "pa.Table":
    if twice := find_twice(table.column_names):
        raise UserError(f"{path} has two columns called {short_repr(twice)}; leave one out")
    return table


def _unreadable(path: Path, what: str, error: Exception) -> UserError:
    return UserError(
        f"{path} cannot be read as a {what}: {' '.join(str(error).split())[:200]}; "
        "mend it there, or copy the file anew"
    )
