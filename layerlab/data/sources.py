"""Texts to train on: their documents, streamed, whatever they are kept in."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from layerlab.data.archives import is_archive, read_documents
from layerlab.data.fingerprint import fingerprint, hash_files
from layerlab.data.parquet_columns import fieldless, read_batches
from layerlab.data.places import data_folder, list_shown
from layerlab.data.python_docs import topics
from layerlab.data.text_files import PACKED, read_lines, read_text_blocks, unreadable
from layerlab.data.unread import describe_unread, warn_of_unread
from layerlab.errors import UserError
from layerlab.recipes.load import validate_table
from layerlab.recipes.paths import DOCUMENTATION, HUB, KEPT
from layerlab.recipes.training_sections import Source
from layerlab.records.parse import DECODER, check_text, json_of, one_line
from layerlab.system.hub import explain_failure, find_commit, hub
from layerlab.validation import expand_home, short_repr, suggest

PLAIN = tuple(kind + packed for kind in (".txt", ".md") for packed in ("", *PACKED))
# In a .json that is packed, large collections have an object on every line.
LINES = (".jsonl", *(kind + packed for kind in (".jsonl", ".json") for packed in PACKED))
TABLES = (*LINES, ".parquet")
ENDINGS = (*PLAIN, *TABLES)
# Files of whole rows: also one JSON array, which no corpus is.
ROWS = (".json", *TABLES)
EXPECTED = ".txt, .md, .jsonl, any of them with .gz or .zst, or .parquet"


class TextChunk(NamedTuple):
    """A part of a document, so that long ones need not fit into memory.

    Attributes:
        first: whether a document begins here.
    """

    text: str
    first: bool


@dataclass(frozen=True, kw_only=True)
class Text:
    """A source as it was found.

    Attributes:
        name: of what is really read.
        identity: differs where the text does, as far as can be told before it is read.
        pieces: reads it from its beginning.
        notes: what the reader of a result has to know.
    """

    name: str
    identity: str
    pieces: Callable[[], Iterator[TextChunk]]
    notes: tuple[str, ...] = ()


def to_source(text: str, field: str = "text") -> Source:
    """Name a text, as a recipe does.

    Raises:
        UserError: a name is empty.
    """
    return validate_table(Source, {"text": text, "field": field}, "the text")


def open_source(source: Source, *, full: bool = True) -> Text:
    """Find a source; its documents are read when they are asked for.

    Args:
        full: read its files to tell it from others, however large; else large ones are known by
            their sizes and times.

    Raises:
        UserError: there is no such text, or its file is of a kind that is not known.
    """
    given = source.text
    if given == DOCUMENTATION:
        return _documentation()
    if given in KEPT:
        return _keep(given)
    if given.startswith(HUB):
        pieces = partial(_of_hub, source, full)
        return Text(name=given, identity=_identify(source, full), pieces=pieces)
    files = _files(given)
    content = hash_files(((path, _kind(path)) for path in files), full=full)
    return Text(
        name=given,
        identity=f"{content} {source.field}",
        pieces=partial(_of_files, files, source.field),
        notes=describe_unread(expand_home(given), files, EXPECTED),
    )


def check_source(source: Source) -> None:
    """Refuse a text that is not there; nothing of it is read.

    Raises:
        UserError: as `open_source`.
    """
    given = source.text
    if given != DOCUMENTATION and given not in KEPT and not given.startswith(HUB):
        _files(given)


def _identify(source: Source, full: bool) -> str:
    """Return what tells a data set of the Hub from others: its commit, or a folder's files.

    Where no more is asked for than tells large files apart it is the name alone: shards are written
    over days, check for themselves that their text goes on, and name runs.
    """
    what = [source.subset, source.split, source.field]
    name = source.text.removeprefix(HUB)
    if not (folder := Path(name)).is_dir():
        commit = find_commit(name) if full else None
        return f"{source.text} {what}" if commit is None else f"{source.text}@{commit} {what}"
    files = sorted(one for one in folder.rglob("*") if one.is_file())
    names = [(one, str(one.relative_to(folder))) for one in files]
    return f"{hash_files(names, full=full)} {what}"


def rows(given: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield whole rows of a file or a folder, each with the file and the line that it stands in.

    Raises:
        UserError: there is no such file, or it holds no rows that can be read.
    """
    path = expand_home(given)
    if not path.exists():
        raise UserError(
            f"there is no file or folder {short_repr(given)}; expected {', '.join(ROWS)}"
        )
    inside = list_shown(path) if path.is_dir() else [path]
    files = _read_once(one for one in inside if one.name.lower().endswith(ROWS))
    if not files:
        raise UserError(f"{given} holds no rows that can be read; expected {', '.join(ROWS)}")
    warn_of_unread(path, files, ", ".join(ROWS))
    for file in files:
        if file.suffix.lower() == ".parquet":
            yield from _parquet(file, None)
        else:
            found = (_array if file.suffix.lower() == ".json" else _json)(file)
            yield from map(_whole, found)


def _whole(found: tuple[str, Mapping[str, Any]]) -> tuple[str, Mapping[str, Any]]:
    """Return a row after checking that its texts are valid.

    A corpus leaves out and counts those that are not.
    """
    location, row = found
    try:
        check_text(row)
    except ValueError as error:
        raise UserError(f"{location}: {error}; mend that line") from None
    return found


def _documentation() -> Text:
    """Return Python's documentation, one document for each topic."""
    documents = topics()
    content = hashlib.blake2b("\0".join(documents).encode(), digest_size=16).hexdigest()
    return Text(
        name=DOCUMENTATION,
        identity=content,
        pieces=lambda: (TextChunk(text, True) for text in documents),
    )


def _keep(name: str) -> Text:
    """Return a text of the data folder; without it, Python's documentation."""
    path = data_folder() / KEPT[name]
    if not path.is_file():
        note = (
            f"{name} is not here (LAYERLAB_DATA names no folder with {KEPT[name]}): "
            f"{DOCUMENTATION} is read in its place"
        )
        found = _documentation()
        return Text(name=found.name, identity=found.identity, pieces=found.pieces, notes=(note,))
    read = _read_archive if is_archive(path) else _part
    return Text(name=name, identity=fingerprint(path), pieces=partial(read, path))


def _read_archive(path: Path) -> Iterator[TextChunk]:
    return (TextChunk(text, True) for text in read_documents(path))


def _part(path: Path) -> Iterator[TextChunk]:
    """Yield the documents between blank lines."""
    begun: list[str] = []
    for line in read_lines(path):
        if line.strip():
            begun.append(line)
        elif begun:
            yield TextChunk("".join(begun), True)
            begun = []
    if begun:
        yield TextChunk("".join(begun), True)


def _files(given: str) -> list[Path]:
    """Return the files of a path."""
    path = expand_home(given)
    if path.is_dir():
        found = _read_once(filter(_kind, list_shown(path)))
        if not found:
            raise UserError(f"the folder {given} holds no text; expected files in {EXPECTED}")
        return found
    if not path.exists():
        hint = suggest(given, (DOCUMENTATION, *KEPT))
        raise UserError(
            f"there is no text {short_repr(given)}: nothing lies at {path.absolute()}; "
            f"{hint}expected {DOCUMENTATION}, {', '.join(KEPT)}, "
            "a file, a folder or hf:NAME"
        )
    if not _kind(path):
        raise UserError(f"{given} is no text that can be read here; expected {EXPECTED}")
    return [path]


def _read_once(files: Iterable[Path]) -> list[Path]:
    """Leave out what lies packed beside the same file unpacked, and would be read twice."""
    every = list(dict.fromkeys(files))
    bare = {one: one.with_suffix("") if one.suffix.lower() in PACKED else one for one in every}
    first: dict[Path, Path] = {}
    for one in sorted(every, key=lambda one: bare[one] != one):
        first.setdefault(bare[one], one)
    return [one for one in every if first[bare[one]] == one]


def _kind(path: Path) -> str:
    """Return the ending of a file, or an empty text if it is not one of the known ones."""
    name = path.name.lower()
    return next((ending for ending in ENDINGS if name.endswith(ending)), "")


def _of_files(files: Iterable[Path], field: str) -> Iterator[TextChunk]:
    for path in files:
        kind = _kind(path)
        if kind in PLAIN:
            yield from _plain(path)
        elif kind == ".parquet":
            yield from _texts(_parquet(path, field), field)
        else:
            yield from _texts(_json(path), field)


def _plain(path: Path) -> Iterator[TextChunk]:
    """Yield a file as one document; lines end in a line feed, whatever they ended in."""
    first = True
    for text in read_text_blocks(path):
        yield TextChunk(text, first)
        first = False


def _json(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the rows of a file with an object on every line, and where they stand."""
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        location = f"{path}, line {number}"
        try:
            row = json_of(line)
        except ValueError as error:
            raise UserError(f"{location} is not JSON: {error}; mend that line") from None
        yield location, _object(row, location)


def _object(row: Any, location: str) -> Mapping[str, Any]:
    if not isinstance(row, dict):
        raise UserError(f"{location} is {short_repr(row)}; expected an object with a field of text")
    return row


def _array(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the objects of a JSON array, or one from every line, as some .json files have them."""
    text = "".join(read_text_blocks(path))
    at, line, seen = _after_blanks(text, 0), 1, 0
    if text[at : at + 1] != "[":
        yield from _json(path)
        return
    at = _after_blanks(text, at + 1)
    while text[at : at + 1] != "]":
        line, seen = line + text.count("\n", seen, at), at
        location = f"{path}, line {line}"
        try:
            row, at = DECODER.raw_decode(text, at)
        except RecursionError:
            raise UserError(f"{location} is nested too deeply; mend that line") from None
        except ValueError as error:
            raise UserError(f"{location} is not JSON: {error}; mend that line") from None
        yield location, _object(row, location)
        at = _after_blanks(text, at)
        if text[at : at + 1] == ",":
            at = _after_blanks(text, at + 1)
            if text[at : at + 1] == "]":
                raise UserError(f"{path}: after the row of line {line} comes , and no row; mend it")
        elif text[at : at + 1] != "]":
            raise UserError(f"{path}: after the row of line {line} comes neither , nor ]; mend it")
    rest = _after_blanks(text, at + 1)
    if rest < len(text):
        line = 1 + text.count("\n", 0, rest)
        raise UserError(
            f"{path}: more comes in line {line}, behind the ] that ends its rows; write one array, "
            "or one object on every line"
        )


def _after_blanks(text: str, at: int) -> int:
    while text[at : at + 1].isspace():
        at += 1
    return at


def _parquet(path: Path, field: str | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    import pyarrow

    number = 0
    try:
        for batch in read_batches(path, field):
            for row in batch.to_pylist():
                number += 1
                yield f"{path}, row {number}", row
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}, after row {number}: a text is not UTF-8; mend that row"
        ) from error
    except (ValueError, pyarrow.ArrowException) as error:
        message = one_line(error)
        raise UserError(f"{path} is no Parquet that can be read: {message}; copy it anew") from None
    except OSError as error:
        raise unreadable(path, error) from None


def _texts(rows: Iterable[tuple[str, Mapping[str, Any]]], field: str) -> Iterator[TextChunk]:
    """Yield one document from each row; an empty one where its field is empty, as null is."""
    for location, row in rows:
        if field not in row:
            raise fieldless(location, field, list(row))
        text = "" if row[field] is None else row[field]
        if not isinstance(text, str):
            raise UserError(
                f"{location}: the field {field!r} is {short_repr(text)}; expected a text: "
                "name another field, or leave that row out"
            )
        yield TextChunk(text, True)


def _of_hub(source: Source, full: bool) -> Iterator[TextChunk]:
    """Yield the documents of a data set of the Hub, row by row; only their tokens are kept."""
    name, why = source.text.removeprefix(HUB), ""
    commit = None if Path(name).is_dir() or not full else find_commit(name)
    try:
        with nullcontext("") if Path(name).is_dir() else hub() as why:
            rows = _stream(name, source, commit)
        numbered = ((f"{source.text}, row {index}", row) for index, row in enumerate(rows, 1))
        yield from _texts(numbered, source.field)
    except UserError:
        raise
    except Exception as error:  # of many kinds: no such name, subset or split, no network
        raise UserError(
            f"cannot read {source.text} from the Hub: {why or explain_failure(error)}; "
            "check the name, subset and split, or give a local file"
        ) from None


def _stream(name: str, source: Source, commit: str | None) -> Any:
    import datasets
    from datasets import packaged_modules

    if name in packaged_modules._PACKAGED_DATASETS_MODULES and not Path(name).is_dir():
        raise UserError(
            f"{source.text} names a reader of files ({name}), which takes whatever lies in the "
            "working folder; expected a data set as owner/name, or give the file or folder itself"
        )
    if Path(name).is_dir():
        given = datasets.load_dataset_builder(name, source.subset).config.data_files or {}
        inside = Path(name).resolve()
        for file in (Path(one) for files in given.values() for one in files):
            if not file.resolve().is_relative_to(inside):
                raise UserError(
                    f"the folder {name!r} takes its rows from {str(file)!r}, outside of it; name "
                    "that file itself, if it is meant"
                )
    return datasets.load_dataset(
        name, source.subset, split=source.split, streaming=True, revision=commit
    )
