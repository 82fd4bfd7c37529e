"""Finds training logs and reads each by the reader of its kind."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from layerlab.errors import UserError
from layerlab.logs import own_run, tables, tensorboard, text_log, trainer_state
from layerlab.logs.columns import split_runs
from layerlab.logs.configuration import read_configuration
from layerlab.logs.exports import pick_metric, unpivot
from layerlab.logs.training_log import LogColumns, TrainingLog
from layerlab.system.files import check_regular
from layerlab.validation import expand_home, short_repr

TABLES = {
    ".csv": tables.read_csv,
    ".tsv": tables.read_csv,
    ".jsonl": tables.read_jsonl,
    ".ndjson": tables.read_jsonl,
    ".parquet": tables.read_parquet,
}
TEXTS = (".log", ".txt", ".out")
EXPECTED = (
    "a table (.csv, .tsv, .jsonl, .parquet), trainer_state.json, TensorBoard's event files, a "
    "text (.log, .txt, .out), a run of layerlab, or a folder of them"
)


def find_logs(given: Sequence[str]) -> list[Path]:
    """Return the files and run folders that are meant, each once.

    Raises:
        UserError: a path leads to nothing, or a folder has no log.
    """
    found: dict[Path, None] = {}
    for one in given:
        path = expand_home(one)
        if not path.exists():
            raise UserError(f"there is no log at {short_repr(one)}; expected {EXPECTED}")
        own = _in_folder(path) if path.is_dir() else [path]
        if not own:
            raise UserError(f"no log lies in the folder {short_repr(one)}; expected {EXPECTED}")
        found |= dict.fromkeys(own)
    return list(found)


def _in_folder(folder: Path) -> list[Path]:
    """Return the logs of a folder; where runs of layerlab are, the tables beside are of them."""
    files = sorted(one for one in folder.rglob("*") if one.is_file())
    own = sorted(one.parent for one in files if one.name == own_run.MANIFEST)
    states = trainer_state.list_latest([one for one in files if one.name == trainer_state.NAME])
    events = [one for one in files if one.match(tensorboard.PATTERN)]
    readable = [one for one in files if one.suffix.lower() in TABLES]
    texts = [one for one in files if one.suffix in TEXTS]
    # Trainers leave several kinds of one run: the first of these has most.
    return own or states or events or readable or texts


def read_logs(paths: Sequence[Path], columns: LogColumns) -> Iterator[TrainingLog]:
    """Yield the runs of each log, with what lies beside it of their configuration.

    Raises:
        UserError: a log cannot be read, or has no such columns.
    """
    for path in paths:
        if path.is_dir():
            yield own_run.read_own(path, columns.loss)
            continue
        check_regular(path)
        beside = read_configuration(path)
        for run in _runs(path, columns):
            yield replace(run, config=beside)


def _runs(path: Path, columns: LogColumns) -> Iterator[TrainingLog]:
    suffix = path.suffix.lower()
    if path.match(tensorboard.PATTERN):
        table = tensorboard.read_events(path)
    elif suffix in TABLES and columns.line is None:
        table = pick_metric(unpivot(TABLES[suffix](path), columns), columns)
    elif suffix == ".json":
        table = trainer_state.read_trainer_state(path)
    elif suffix in TEXTS or columns.line is not None:
        table = text_log.read_text(path, columns.line)
    else:
        raise UserError(f"{short_repr(str(path))} is of no kind that is known; expected {EXPECTED}")
    yield from split_runs(table, path, columns)
