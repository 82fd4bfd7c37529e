"""Readings of an inspection that was interrupted, kept in the cache until the same one is whole.

What is typed again reads nothing twice that took long: rows are known by the model's files, the
text, the measure with its options, and the code that reads them.
"""

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor

from layerlab.errors import UserError
from layerlab.loading.model import LoadedModel
from layerlab.loading.weights.hash import hash_tensors
from layerlab.measures.measure import Measure, MeasureContext, Row
from layerlab.records.file_digests import hash_sources
from layerlab.records.kept import read_kept, write_kept
from layerlab.records.parse import digest_of
from layerlab.system.hardware import cache_folder, versions
from layerlab.system.signals import explain_interruption

PAUSE = 60.0  # seconds between two saves
SHORT = 10.0  # seconds of reading that nobody misses
MONTH = 30 * 86_400.0
FOLDER = "inspections"
# All that a reading hangs on but the model itself.
CODE = (
    *(f"{room}/**/*.py" for room in ("loading", "measures", "numerics", "observe")),
    *(f"{room}/**/*.py" for room in ("blocks", "model", "variants")),
    "numerics/formats/*.cpp",
)
PACKAGE = Path(__file__).parents[1]


class KeptReadings:
    """Rows of each record of a model that was read, and what its measures noted beside them.

    Attributes:
        found: how many records an earlier inspection has left.
    """

    def __init__(self, file: Path | None = None) -> None:
        """Find what an earlier inspection has left in a file; without one nothing is kept."""
        self.file = file
        left = None if file is None else read_kept(file, _check)
        self._rows: dict[str, list[Row]] = {} if left is None else left["rows"]
        self._beside: dict[str, dict[str, Any]] = {} if left is None else left["beside"]
        self._runs: dict[str, MeasureContext] = {}
        self._saved = len(self._rows)
        self._told = time.monotonic()
        self.found = self._saved

    def resume(self, measure: Measure, run: MeasureContext) -> None:
        """Give a measure back what it had noted; it is asked again when readings are saved."""
        if measure.resumes and self.file is not None:
            name = _name(measure, run)
            self._runs[name] = run
            beside = self._beside.get(name, {"notes": {}, "noted": [], "picture": {}})
            run.notes.update(beside["notes"])
            run.picture.update(beside["picture"])
            run.noted.update({(about, remark): set(at) for about, remark, at in beside["noted"]})

    def find(
        self, measure: Measure, run: MeasureContext, record: Sequence[Any]
    ) -> list[Row] | None:
        """Return the rows of a record, or None where it is to be read."""
        return self._rows.get(_place(measure, run, record)) if measure.resumes else None

    def keep(
        self, measure: Measure, run: MeasureContext, record: Sequence[Any], rows: list[Row]
    ) -> None:
        """Take the rows of a record, and save all now and then."""
        if measure.resumes and self.file is not None:
            self._rows[_place(measure, run, record)] = rows
            if time.monotonic() - self._told >= PAUSE:
                self._told = time.monotonic()
                self.save()

    def save(self) -> bool:
        """Save what was read; return whether anything is there."""
        if self.file is not None and len(self._rows) > self._saved:
            beside = {name: _state(run) for name, run in self._runs.items()}
            with suppress(UserError):  # a full disk ends no inspection
                write_kept(self.file, {"rows": self._rows, "beside": beside})
                self._saved = len(self._rows)
        return self._saved > 0

    def discard(self) -> None:
        """Remove what was saved."""
        if self.file is not None:
            with suppress(OSError):
                self.file.unlink(missing_ok=True)


class ReadingStore:
    """The kept readings of all models of one inspection."""

    def __init__(self) -> None:
        self._models: list[KeptReadings] = []
        self._begun = time.monotonic()

    def open(self, subject: LoadedModel, sequences: Sequence[Tensor]) -> KeptReadings:
        """Return what an earlier inspection of the same model and text has left."""
        self.save()
        self._models.append(KeptReadings(_file(subject, sequences)))
        return self._models[-1]

    def save(self) -> bool:
        """Save what was read of all models, if it took long; return whether anything is there."""
        if time.monotonic() - self._begun < SHORT:
            return False
        return any([one.save() for one in self._models])

    def discard(self) -> None:
        """Remove what was saved, once the report is there."""
        for one in self._models:
            one.discard()


_OPEN: ContextVar[ReadingStore | None] = ContextVar("open", default=None)


@contextmanager
def keep_readings() -> Iterator[ReadingStore]:
    """Yield a store of readings that stay where what follows fails, also within another such.

    Raises:
        UserError: what followed failed; it says that readings are kept.
        Interrupted: likewise.
    """
    if (outer := _OPEN.get()) is not None:
        yield outer
        return
    store = ReadingStore()
    token = _OPEN.set(store)
    try:
        yield store
    except BaseException as error:
        if not store.save():
            raise
        if isinstance(error, UserError):
            raise UserError(f"{error}; what was read before is kept, and not read again") from error
        with explain_interruption("what was read is kept"):
            raise
    finally:
        _OPEN.reset(token)
    store.discard()


def _file(subject: LoadedModel, sequences: Sequence[Tensor]) -> Path | None:
    """Return where the readings of a model are kept; None where its code or files tell nothing."""
    brought = not type(subject.model).__module__.startswith(("transformers.", "layerlab."))
    if subject.folder is None or brought:
        return None
    folder = cache_folder() / FOLDER
    for old in folder.glob("*.json"):
        with suppress(OSError):
            if time.time() - old.stat().st_mtime > MONTH:
                old.unlink()
    named = {
        "name": subject.name,
        "files": [_describe(one) for one in sorted(subject.folder.iterdir()) if one.is_file()],
        "weights": [subject.place, str(subject.model.dtype)],
        "text": hash_tensors((str(index), ids) for index, ids in enumerate(sequences)),
        "code": _code(),
        "versions": versions(),
    }
    return folder / f"{digest_of(named)[:32]}.json"


def _describe(file: Path) -> list[Any]:
    found = file.stat()
    return [file.name, found.st_size, found.st_mtime_ns]


@cache
def _code() -> str:
    return hash_sources(PACKAGE, CODE)


def _name(measure: Measure, run: MeasureContext) -> str:
    options = json.dumps(dict(run.options), sort_keys=True, default=str)
    return f"{measure.name} {hashlib.blake2b(options.encode(), digest_size=6).hexdigest()}"


def _place(measure: Measure, run: MeasureContext, record: Sequence[Any]) -> str:
    one = next(iter(record), None)
    part = getattr(one, "attention", None) or one
    where = [
        getattr(one, "sequence", None),
        getattr(one, "layer", None),
        getattr(part, "name", None),
    ]
    return f"{_name(measure, run)} {json.dumps(where)}"


def _state(run: MeasureContext) -> dict[str, Any]:
    noted = [[about, remark, sorted(at)] for (about, remark), at in run.noted.items()]
    return {"notes": run.notes, "noted": noted, "picture": run.picture}


def _check(left: dict[str, Any]) -> None:
    """Raise a LookupError, a TypeError or a ValueError where a table is none of ours."""
    for rows in left["rows"].values():
        [dict(row) for row in rows]
    for beside in left["beside"].values():
        dict(beside["notes"]), dict(beside["picture"])
        {(about, remark): set(at) for about, remark, at in beside["noted"]}
