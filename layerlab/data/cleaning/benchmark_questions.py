"""The questions of benchmarks in a folder, whatever their rows are called."""

import csv
import io
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from layerlab.data.archives import is_archive, read_members
from layerlab.data.charset import advise_conversion
from layerlab.data.cleaning.contamination import Question
from layerlab.errors import UserError
from layerlab.records.parse import check_text, json_of
from layerlab.system.files import read_whole
from layerlab.validation import short_repr

# What holds a question, by the names that benchmarks use; the first that a row has counts.
ASKED = (
    "question",
    "sentence",
    "sentence1",
    "goal",
    "query",
    "input",
    "text",
    "content",
    "document",
    "dialogue",
    "abst",
)
BESIDE = ("passage", "sentence2", "premise", "hypothesis")
OPTIONS = ("options", "choices", "a", "b", "c", "d", "sol1", "sol2")
LINES = ".src.txt"
LARGEST = 2**25
KINDS = (".json", ".jsonl", ".csv", LINES)
PACKED = tuple(f"{kind}.{end}" for kind in KINDS for end in ("gz", "xz", "bz2", "zst"))
BARE = 0.5  # share of rows without a question that a benchmark may have
_LOG = logging.getLogger("layerlab")


def questions(place: Path) -> Iterator[Question]:
    """Yield every question of the .json, .jsonl and .csv files of a folder, or of one such file.

    Of a .src.txt, as LCSTS has them, each line is one. Archives (.tar.gz, .zip) are read where they
    lie. A benchmark is called after its file, without
    the ending; a row by its own id, or its number.

    Raises:
        UserError: there is no such file, it cannot be read, or no row has a question.
    """
    if not place.exists():
        raise UserError(f"there is no benchmark {place}; give a folder or a file of questions")
    found = False
    for name, data in _files(place):
        number = bare = 0
        for number, row in enumerate(_rows(name, data), 1):
            if not isinstance(row.get(ASKED[0], ""), str | None):
                raise UserError(
                    f"{name}, row {number}: question is {short_repr(row[ASKED[0]])}; expected a "
                    "text"
                )
            text = _text(row)
            if text:
                found = True
                own = row.get("id")
                yield Question(
                    PurePosixPath(name).stem, str(number if own in (None, "") else own), text
                )
            else:
                bare += 1
        _check_bare(name, bare, number)
    if not found:
        raise UserError(
            f"{place} holds no questions; expected {', '.join(KINDS)} or an archive of them, whose "
            f"rows have one of {', '.join(ASKED)}"
        )


def _check_bare(name: str, bare: int, rows: int) -> None:
    """Refuse a file of which most questions are not seen; say what else is passed over.

    Raises:
        UserError: more than half of the rows have no question, and others have.
    """
    names = ", ".join(ASKED)
    if bare and bare == rows:
        _LOG.warning("%s has no question in any row and is passed over; expected %s", name, names)
    elif bare > rows * BARE and not name.lower().endswith(LINES):
        raise UserError(
            f"{name}: {bare:,} of {rows:,} rows have no question; expected one of {names}: rename "
            "the field, or take these rows out"
        )
    elif bare:
        _LOG.warning("%s: %d of %d rows have no question and are passed over", name, bare, rows)


def _files(place: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of files, in an order that does not depend on the machine."""
    every = sorted(place.rglob("*")) if place.is_dir() else [place]
    for path in every:
        if not path.is_file():
            continue
        if is_archive(path):
            yield from read_members(path, lambda name: name.lower().endswith(KINDS))
        elif path.name.lower().endswith(PACKED):
            _LOG.warning("%s is packed and is passed over; unpack it to have it read", path)
        elif path.name.lower().endswith(KINDS):
            try:
                yield path.name, read_whole(path)
            except OSError as error:
                said = error.strerror or str(error)
                raise UserError(f"cannot read {path}: {said}; copy it anew") from None


def _rows(name: str, data: bytes) -> Iterator[Mapping[str, Any]]:
    if PurePosixPath(name).name.startswith("."):  # what macOS leaves in archives
        return
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{name}: byte {error.start} is not UTF-8 text; {advise_conversion(error)}"
        ) from None
    if name.lower().endswith(LINES):
        yield from ({"text": line.rstrip("\n")} for line in io.StringIO(text))
        return
    if name.lower().endswith(".csv"):
        try:
            yield from _cells(csv.reader(io.StringIO(text, newline=""), strict=True))
        except csv.Error as error:
            raise UserError(f"{name} is no table: {error}; mend that file") from None
        return
    yield from _objects(name, text)


def _cells(lines: Iterator[list[str]]) -> Iterator[Mapping[str, Any]]:
    first = next(lines, [])
    head = [cell.strip().lower() for cell in first]
    named = bool(set(head) & {*ASKED, *BESIDE})
    # As MMLU's: no line of names, the question first.
    for number, row in enumerate(lines if named else itertools.chain([first], lines), 1 + named):
        if row and len(row) != len(head):
            raise csv.Error(f"row {number} has {len(row)} cells, and the first {len(head)}")
        if row and named:
            yield dict(zip(head, row, strict=True))
        elif row:
            yield {"question": row[0], "options": row[1:-1]}


def _objects(name: str, text: str) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a JSON array, or one object per line, whatever the file is called.

    A file that is one object, as the names of subjects beside a benchmark, is one row. Python holds
    an array in up to thirty times its bytes, so a large file is read line by line or not at all.
    """
    rows: Iterable[Any]
    try:
        if len(text) > LARGEST:
            raise ValueError("too large to be read as one value")
        found = check_text(json_of(text))
        rows = found if isinstance(found, list) else [found]
    except ValueError:
        rows = _lines(name, text)
    for row in rows:
        found = row if isinstance(row, Mapping) else {}
        yield {str(key).lower(): value for key, value in found.items()}


def _lines(name: str, text: str) -> Iterator[Any]:
    for number, line in enumerate(io.StringIO(text), 1):
        try:
            if len(line) > LARGEST:
                raise ValueError(f"more than {LARGEST:,} characters; write an object on every line")
            if line.strip():
                yield check_text(json_of(line))
        except ValueError as error:
            raise UserError(f"{name}, line {number} is not JSON: {error}; mend that line") from None


def _text(row: Mapping[str, Any]) -> str:
    """Return a question with its options, and what it is about."""
    first = next((row[name] for name in ASKED if isinstance(row.get(name), str)), "")
    parts = [row[name] for name in BESIDE if isinstance(row.get(name), str)]
    parts += [first, *(text for name in OPTIONS for text in _strings(row.get(name)) if first)]
    return "\n".join(part for part in parts if part.strip())


def _strings(value: Any) -> Iterator[str]:
    """Yield options as benchmarks hold them: a text, a list, or either by its letter."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | Mapping):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(one)
