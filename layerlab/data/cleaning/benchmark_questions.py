"""The questions of benchmarks in a folder, whatever their rows are called."""

import csv
import io
import itertools
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from layerlab.console.tables import printable
from layerlab.data.archives import is_archive, read_members
from layerlab.data.charset import advise_conversion, refuse_zeros
from layerlab.data.cleaning.contamination import Question
from layerlab.data.places import list_shown
from layerlab.errors import UserError
from layerlab.records.parse import check_text, csv_of, json_of
from layerlab.system.files import read_whole
from layerlab.validation import find_twice, short_repr

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
# What lies beside questions and is none, by the beginning or the end of its name.
BESIDE_THEM = ("readme", "license", "licence", "changelog", ".", "_")
NO_ROWS = (
    ".md",
    ".rst",
    ".py",
    ".pdf",
    ".bib",
    ".png",
    ".jpg",
    ".svg",
    ".html",
    ".lst",
    ".tgt.txt",
)
NAMED = 3  # of the files that are passed over, or share a name
LONGEST = 300  # characters of those names
BARE = 0.5  # share of rows without a question that a benchmark may have
_LOG = logging.getLogger("layerlab")


def questions(*places: Path) -> Iterator[Question]:
    """Yield every question of the .json, .jsonl and .csv files of folders, or of such files.

    Of a .src.txt, as LCSTS has them, each line is one. Archives (.tar.gz, .zip) are read where they
    lie. A benchmark is called after its file, without
    the ending; a row by its own id, or its number.

    Raises:
        UserError: there is no such file, it cannot be read, or no row has a question.
    """
    files: dict[str, list[str]] = {}
    for source in places:
        yield from _questions(source, files)
    shared = [f"{one} ({', '.join(names)})" for one, names in files.items() if len(names) > 1]
    if shared:
        more = f"; and {len(shared) - NAMED:,} more names" if len(shared) > NAMED else ""
        _LOG.warning(
            "the questions of files with one name are counted together: %s%s",
            printable("; ".join(shared[:NAMED]), LONGEST),
            more,
        )


def _questions(source: Path, files: dict[str, list[str]]) -> Iterator[Question]:
    if not source.exists():
        raise UserError(f"there is no benchmark {source}; give a folder or a file of questions")
    found = False
    for name, data in _files(source):
        number = bare = 0
        row: Mapping[str, Any] = {}
        stem, own = PurePosixPath(name).stem, False
        for number, row in enumerate(_rows(name, data), 1):
            if not isinstance(row.get(ASKED[0], ""), str | None):
                raise UserError(
                    f"{name}, row {number}: question is {short_repr(row[ASKED[0]])}; expected a "
                    "text"
                )
            text = _text(row)
            if text:
                own = True
                id_given = row.get("id")
                yield Question(stem, str(number if id_given in (None, "") else id_given), text)
            else:
                bare += 1
        _check_bare(name, bare, number, _names_alone(row))
        if own:
            found = True
            files.setdefault(stem, []).append(f"{source.name}/{name}" if source.is_dir() else name)
    if not found:
        raise UserError(
            f"{source} holds no questions; expected {', '.join(KINDS)} or an archive of them, "
            f"whose rows have one of {', '.join(ASKED)}"
        )


def _names_alone(row: Mapping[str, Any]) -> bool:
    """Return whether a row is a list of names, as that of the subjects beside a benchmark."""
    lists = (one for one in row.values() if isinstance(one, list))
    return not any(isinstance(one, Mapping) for held in lists for one in held)


def _check_bare(name: str, bare: int, rows: int, names_alone: bool) -> None:
    """Refuse a file of which most questions are not seen; say what else is passed over.

    Raises:
        UserError: more than half of the rows have no question.
    """
    names = ", ".join(ASKED)
    if bare == rows == 1 and names_alone:
        _LOG.warning("%s has no question in any row and is passed over; expected %s", name, names)
    elif bare > rows * BARE and (bare == rows or not name.lower().endswith(LINES)):
        raise UserError(
            f"{name}: {bare:,} of {rows:,} rows have no question; expected one of {names}: rename "
            "the field, or take these rows out"
        )
    elif bare:
        _LOG.warning("%s: %d of %d rows have no question and are passed over", name, bare, rows)


def _files(source: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of files, in an order that does not depend on the machine."""
    every = list_shown(source) if source.is_dir() else [source]
    left: list[str] = []

    def is_wanted(name: str) -> bool:
        own = PurePosixPath(name).name.lower()
        read = own.endswith(KINDS)
        if not read and not own.startswith(BESIDE_THEM) and not own.endswith(NO_ROWS):
            left.append(name)
        return read

    for path in every:
        if is_archive(path):
            yield from read_members(path, is_wanted)
        elif is_wanted(str(path)):
            try:
                inside = path.relative_to(source) if path != source else Path(path.name)
                yield inside.as_posix(), read_whole(path)
            except OSError as error:
                message = error.strerror or str(error)
                raise UserError(f"cannot read {path}: {message}; copy it anew") from None
    if left:
        more = f" and {len(left) - NAMED:,} more" if len(left) > NAMED else ""
        _LOG.warning(
            "%s%s: passed over, so that questions in them are not looked for; expected %s: unpack "
            "or convert them to have them read",
            printable(", ".join(left[:NAMED])),
            more,
            ", ".join(KINDS),
        )


def _rows(name: str, data: bytes) -> Iterator[Mapping[str, Any]]:
    if PurePosixPath(name).name.startswith("."):  # what macOS leaves in archives
        return
    try:
        text = refuse_zeros(data).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{name}: byte {error.start} is not UTF-8 text; {advise_conversion(error)}"
        ) from None
    if name.lower().endswith(LINES):
        yield from ({"text": line.rstrip("\n")} for line in io.StringIO(text))
        return
    if name.lower().endswith(".csv"):
        try:
            yield from _cells(csv_of(text))
        except csv.Error as error:
            raise UserError(f"{name} is no table: {error}; mend that file") from None
        return
    yield from _objects(name, text)


def _cells(lines: Iterator[list[str]]) -> Iterator[Mapping[str, Any]]:
    first = next(lines, [])
    head = [cell.strip().lower() for cell in first]
    named = bool(set(head) & {*ASKED, *BESIDE})
    if named and (twice := find_twice(filter(None, head))):
        raise csv.Error(f"two columns are called {short_repr(twice)}")
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
    rows: Iterable[Any] = _lines(name, text)
    if len(text) <= LARGEST:
        try:
            found = check_text(json_of(text))
            rows = found if isinstance(found, list) else [found]
        except json.JSONDecodeError:  # several values
            pass
        except ValueError as error:
            raise UserError(f"{name} is not JSON: {error}; mend that file") from None
    for number, row in enumerate(rows, 1):
        found = row if isinstance(row, Mapping) else {}
        if twice := find_twice(str(key).lower() for key in found):
            raise UserError(
                f"{name}, row {number} has {short_repr(twice)} twice, in capitals and without; "
                "leave one out"
            )
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
    """Yield options as benchmarks hold them: a text, a list, or either by its letter.

    Where letters stand beside the texts, as ARC's `label`, they are none of the question's words.
    """
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _strings(value.get("text", list(value.values())))
    elif isinstance(value, list):
        for one in value:
            yield from _strings(one)
