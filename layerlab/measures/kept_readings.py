"""Readings of an inspection that was interrupted, kept in the cache until the same one is whole.

What is typed again reads nothing twice that took long: rows are known by the model's files, the
text, all measures with their options (some are read together, and round otherwise alone), and the
code that reads them.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from layerlab.errors import UserError
from layerlab.loading.folders import input_files
from layerlab.loading.model import LoadedModel
from layerlab.loading.weights.hash import hash_tensors
from layerlab.measures.measure import Measure, MeasureContext, Row
from layerlab.records.file_digests import hash_sources
from layerlab.records.kept import read_kept, warn_of_damage, write_kept
from layerlab.records.parse import digest_of
from layerlab.system.hardware import cache_folder, machine, versions
from layerlab.system.signals import explain_interruption

PAUSE = 60.0  # seconds between two saves,
SHARE = 0.01  # of which they may take no more
SHORT = 10.0  # seconds of reading that nobody misses
MONTH = 30 * 86_400.0
FOLDER = "inspections"
CODE = ("**/*.py", "numerics/formats/*.cpp")
PACKAGE = Path(__file__).parents[1]
# Of other code nothing is known that would tell one state of it from another.
KNOWN = ("layerlab.", "torch.", "transformers.")


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
        self._taken: Counter[str] = Counter()
        self._saved = len(self._rows)
        self._due = time.monotonic() + PAUSE
        self.found = self._saved

    def resume(self, measure: Measure, run: MeasureContext) -> None:
        """Give a measure back what it had noted; it is asked again when readings are saved."""
        if measure.resumes and self.file is not None:
            self._runs[measure.name] = run
            beside = self._beside.get(measure.name, {"notes": {}, "noted": [], "picture": {}})
            run.notes.update(beside["notes"])
            run.picture.update(beside["picture"])
            run.noted.update({(about, remark): set(at) for about, remark, at in beside["noted"]})

    def find(self, measure: Measure, record: Sequence[Any]) -> list[Row] | None:
        """Return the rows of the next record of a measure, or None where it is to be read."""
        rows = self._rows.get(self._place(measure, record))
        if rows is not None and not all(_fits(measure, row) for row in rows):
            warn_of_damage(f"{self.file} does not count: {measure.name} has other columns")
            self._rows = {}
            return None
        return rows

    def keep(self, measure: Measure, record: Sequence[Any], rows: list[Row]) -> None:
        """Take the rows of that record, found or read, and save all now and then."""
        if measure.resumes and self.file is not None:
            self._rows[self._place(measure, record)] = rows
            self._taken[measure.name] += 1
            if (begun := time.monotonic()) >= self._due:
                self.save()
                ended = time.monotonic()
                self._due = ended + max(PAUSE, (ended - begun) / SHARE)

    def _place(self, measure: Measure, record: Sequence[Any]) -> str:
        """Return where a record stands: its number among those of its measure, and its names."""
        one = next(iter(record), None)
        part = getattr(one, "attention", None) or one
        at = [getattr(one, name, None) for name in ("sequence", "layer", "expert")]
        return f"{measure.name} {self._taken[measure.name]} {at} {getattr(part, 'name', None)}"

    def save(self) -> bool:
        """Save what was read; return whether anything is there."""
        if self.file is None:
            return False
        if len(self._rows) > self._saved:
            beside = {name: _state(run) for name, run in self._runs.items()}
            with suppress(UserError):  # a full disk ends no inspection
                write_kept(self.file, {"rows": self._rows, "beside": beside})
                self._saved = len(self._rows)
        return self.file.exists()

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

    def open(
        self, subject: LoadedModel, sequences: Sequence[Tensor], measures: Sequence[Measure]
    ) -> KeptReadings:
        """Return what the same inspection of a model has left."""
        self.save()
        self._models.append(KeptReadings(_file(subject, sequences, measures)))
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
def keep_readings(*, typed: bool = False) -> Iterator[ReadingStore]:
    """Yield a store of readings that stay where what follows fails, also within another such.

    Args:
        typed: as a command, which is told how to go on; what calls this from Python stops.

    Raises:
        UserError: what followed failed; it says that readings are kept.
        Interrupted: a command was interrupted; likewise.
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
            raise UserError(
                f"{error}; what was read before is kept, and with the same measures not read again"
            ) from error
        if not typed:
            raise
        with explain_interruption("what was read is kept"):
            raise
    finally:
        _OPEN.reset(token)
    store.discard()


def _file(
    subject: LoadedModel, sequences: Sequence[Tensor], measures: Sequence[Measure]
) -> Path | None:
    """Return where the readings of a model are kept; None where its code or files tell nothing."""
    code = {type(one).__module__ for one in subject.model.modules()}
    code |= {one.read.__module__ for one in measures}
    if subject.folder is None or not all(one.startswith(KNOWN) for one in code):
        return None
    named = {
        "name": subject.name,
        "files": [_describe(one) for one in input_files(subject.folder.resolve())],
        "weights": [subject.place, str(subject.model.dtype)],
        "text": hash_tensors((str(index), ids) for index, ids in enumerate(sequences)),
        "measures": [[one.name, str(sorted(one.options.items()))] for one in measures],
        "code": _code(),
        "versions": versions(),
        "machine": machine(str(subject.device), torch.get_num_threads()),
    }
    file = cache_folder() / FOLDER / f"{digest_of(named)[:32]}.json"
    try:
        file.exists()
        _tidy(file.parent)
    except OSError:  # the cache is another user's
        return None
    return file


def _tidy(folder: Path) -> None:
    """Remove what nobody came back for."""
    for old in folder.glob("*.json"):
        with suppress(OSError):
            if time.time() - old.stat().st_mtime > MONTH:
                old.unlink()


def _describe(file: Path) -> list[Any]:
    found = file.stat()
    # Copies keep the time of the last change, as do archives; none keeps that of its entry.
    return [str(file), found.st_size, found.st_mtime_ns, found.st_ctime_ns]


@cache
def _code() -> str:
    return hash_sources(PACKAGE, CODE)


def _state(run: MeasureContext) -> dict[str, Any]:
    noted = [[about, remark, sorted(at)] for (about, remark), at in run.noted.items()]
    return {"notes": run.notes, "noted": noted, "picture": run.picture}


def _fits(measure: Measure, row: Row) -> bool:
    """Return whether a row has a place, and in all other columns numbers."""
    values = (value for name, value in row.items() if name not in measure.per)
    return row.keys() >= set(measure.per) and all(
        value is None or isinstance(value, int | float) for value in values
    )


def _check(left: dict[str, Any]) -> None:
    """Raise a LookupError, a TypeError or a ValueError where a table is none of ours."""
    for rows in left["rows"].values():
        [dict(row) for row in rows]
    for beside in left["beside"].values():
        dict(beside["notes"]), dict(beside["picture"])
        {(about, remark): set(at) for about, remark, at in beside["noted"]}
