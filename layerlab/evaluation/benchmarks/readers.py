"""The one reader of benchmark files: rows of text, whatever they are kept in.

Everything stays a string: an option "01" is no 1, "1.50" is no 1.5 and "NA" is not missing, as it
would be where a library guesses types column by column. A byte order mark is no part of the first
name; cells may hold quotes and line breaks.
"""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from layerlab.data.charset import advise_conversion, refuse_zeros
from layerlab.errors import UserError
from layerlab.evaluation.benchmarks.files import BenchmarkFile, read_files
from layerlab.evaluation.benchmarks.spec import Benchmark, FileForm, Subtask
from layerlab.records.parse import check_text, csv_of, json_of
from layerlab.validation import find_twice, short_repr

# The columns of a file without a first line that names them.
HEADLESS = ("question", "a", "b", "c", "d", "answer")
Cell = str | list[str] | dict[str, Any]


class FileRow(NamedTuple):
    """A row of a file.

    Attributes:
        location: its file and line, as errors repeat them.
        cells: texts, lists of texts, or tables, by the names of their columns in lower case.
    """

    location: str
    cells: Mapping[str, Cell]

    def text(self, *names: str) -> str:
        """Return the text of the first of these columns that the row has.

        Raises:
            UserError: it has none of them, or something else there.
        """
        value = self._value(names)
        if not isinstance(value, str):
            raise UserError(
                f"{self.location}: {names[0]!r} is {short_repr(value)}; expected a text"
            )
        return value

    def texts(self, name: str) -> list[str]:
        """Return the list of texts of a column.

        A single text is a list of one, an empty one of none.

        Raises:
            UserError: the row has no such column.
        """
        value = self._value((name,))
        return value if isinstance(value, list) else [self.text(name)] * bool(value)

    def _value(self, names: Sequence[str]) -> Cell:
        for name in names:
            if name in self.cells:
                return self.cells[name]
        raise UserError(
            f"{self.location} has no {' or '.join(map(repr, names))}; "
            f"it has {', '.join(self.cells) or 'nothing'}: mend that line"
        )


def read_rows(
    benchmark: Benchmark, subtask: Subtask, split: str, folder: Path | None = None
) -> list[FileRow]:
    """Read the rows of a split of a subject, in the order of its file.

    Args:
        folder: the data folder; LAYERLAB_DATA where none is given.

    Raises:
        UserError: a file is not there, or not written as the benchmark writes it.
    """
    files = read_files(benchmark, subtask, split, folder)
    found = list(_FORMS[benchmark.form](*files))
    if not found:
        raise UserError(f"{files[0].name} holds no rows; copy it anew")
    return found


def of_table(file: BenchmarkFile) -> Iterator[FileRow]:
    r"""Yield the rows of a file of comma-separated cells whose first line names the columns.

    Raises:
        UserError: a column is missing, or a row has too few or too many cells.

    Example:
        >>> table = b'\xef\xbb\xbfid,Question,A,B,C,D,Answer\n0,"1,2?",01,NA,1.50,None,a\n'
        >>> [row.cells["a"] for row in of_table(BenchmarkFile("x.csv", table))]
        ['01']
    """
    records = _records(file)
    location, first = next(records, (file.name, []))
    names = [name.strip().lower() for name in first]
    lacking = [name for name in HEADLESS[:-1] if name not in names]
    if lacking:
        raise UserError(
            f"{location}: the columns are {short_repr(', '.join(first))}; "
            "expected question, A, B, C, D and answer"
        )
    _check_once(names, location)
    yield from (_row(names, location, cells) for location, cells in records)


def of_headless_table(file: BenchmarkFile) -> Iterator[FileRow]:
    """Yield the rows of a file of comma-separated cells without a line of column names."""
    yield from (_row(HEADLESS, location, cells) for location, cells in _records(file))


def of_lines(file: BenchmarkFile) -> Iterator[FileRow]:
    """Yield the rows of a file with a JSON object on every line.

    Example:
        >>> [row.cells for row in of_lines(BenchmarkFile("x.jsonl", b'{"Label": 01.50}'))]
        Traceback (most recent call last):
        ...
        layerlab.errors.UserError: x.jsonl, line 1 is not JSON: Expecting ',' delimiter; ...
        >>> [row.cells for row in of_lines(BenchmarkFile("x.jsonl", b'{"Label": 1.50, "n": null}'))]
        [{'label': '1.50', 'n': ''}]
    """
    for number, line in enumerate(decode_text(file).split("\n"), 1):
        if line.strip():
            location = f"{file.name}, line {number}"
            yield _object(location, _parse(location, line, "that line"))


def of_list(file: BenchmarkFile) -> Iterator[FileRow]:
    """Yield the rows of a file that is one JSON list of objects."""
    found = _parse(file.name, decode_text(file), "that file")
    if not isinstance(found, list):
        raise UserError(f"{file.name} is {short_repr(found)}; expected a list of objects")
    for number, one in enumerate(found, 1):
        yield _object(f"{file.name}, item {number}", one)


def of_labelled_lines(file: BenchmarkFile, labels: BenchmarkFile) -> Iterator[FileRow]:
    """Yield the rows of a file of JSON lines whose labels are in a second file, line by line."""
    found, beside = list(of_lines(file)), _plain(labels)
    _same(file, len(found), labels, len(beside))
    for row, label in zip(found, beside, strict=True):
        yield FileRow(row.location, {**row.cells, "label": label})


def of_parallel_lines(file: BenchmarkFile, beside: BenchmarkFile) -> Iterator[FileRow]:
    """Yield the rows of two files of plain lines, one of texts and one of summaries."""
    texts, summaries = _plain(file), _plain(beside)
    _same(file, len(texts), beside, len(summaries))
    for number, pair in enumerate(zip(texts, summaries, strict=True), 1):
        cells = dict(zip(("text", "summary"), pair, strict=True))
        yield FileRow(f"{file.name}, line {number}", cells)


def decode_text(file: BenchmarkFile) -> str:
    """Decode the text of a file: drop a byte order mark, and end every line in a line feed.

    Raises:
        UserError: it is not UTF-8.
    """
    try:
        text = refuse_zeros(file.content).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = file.content[: error.start].count(b"\n") + 1
        raise UserError(
            f"{file.name}, line {line} is not UTF-8 text; {advise_conversion(error)}"
        ) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _records(file: BenchmarkFile) -> Iterator[tuple[str, list[str]]]:
    """Yield the cells of each record and its first line; a record may run over several lines."""
    reader = csv_of(decode_text(file))
    begins = 1
    try:
        for cells in reader:
            if cells:
                yield f"{file.name}, line {begins}", cells
            begins = reader.line_num + 1
    except csv.Error as error:
        raise UserError(
            f"{file.name}, line {begins} is no row of a table: {error}; mend its quotes"
        ) from None


def _row(names: Sequence[str], location: str, cells: Sequence[str]) -> FileRow:
    if len(cells) != len(names):
        raise UserError(f"{location} has {len(cells)} cells; expected {len(names)}: mend that line")
    return FileRow(location, dict(zip(names, cells, strict=True)))


def _parse(location: str, text: str, mend: str) -> Any:
    try:  # numbers as they are written: 1.50 is no 1.5
        return check_text(json_of(text, parse_int=str, parse_float=str, parse_constant=str))
    except ValueError as error:
        message = getattr(error, "msg", str(error))
        raise UserError(f"{location} is not JSON: {message}; mend {mend}") from None


def _object(location: str, found: Any) -> FileRow:
    if not isinstance(found, dict):
        raise UserError(f"{location} is {short_repr(found)}; expected an object")
    _check_once(map(str.lower, found), location)
    cells = {name.lower(): _cell(value) for name, value in found.items()}
    return FileRow(location, cells)


def _check_once(names: Iterable[str], location: str) -> None:
    """Refuse two columns of one name, capitals or not: each reader takes another."""
    if twice := find_twice(filter(None, names)):
        raise UserError(f"{location} has two columns called {short_repr(twice)}; leave one out")


def _cell(value: Any) -> Cell:
    if isinstance(value, list):
        return [
            short_repr(one) if isinstance(one, list | dict) else str(_cell(one)) for one in value
        ]
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else value


def _plain(file: BenchmarkFile) -> list[str]:
    lines = decode_text(file).split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def _same(file: BenchmarkFile, count: int, beside: BenchmarkFile, other: int) -> None:
    if count != other:
        raise UserError(
            f"{file.name} has {count} rows and {beside.name} has {other}; expected as many: "
            "copy both anew"
        )


_FORMS: Mapping[FileForm, Callable[..., Iterator[FileRow]]] = {
    "csv": of_table,
    "headless": of_headless_table,
    "jsonl": of_lines,
    "json": of_list,
    "labelled": of_labelled_lines,
    "parallel": of_parallel_lines,
}
