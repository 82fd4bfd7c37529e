"""Reads the history that the Trainer of Hugging Face keeps in trainer_state.json."""

from pathlib import Path
from typing import TYPE_CHECKING

from layerlab.errors import UserError
from layerlab.logs.run_names import CHECKPOINT
from layerlab.logs.tables import table_of
from layerlab.records.parse import read_json

if TYPE_CHECKING:
    import pyarrow as pa

NAME, HISTORY = "trainer_state.json", "log_history"


def read_trainer_state(path: Path) -> "pa.Table":
    """Read what was logged, a row for each entry of the history.

    Raises:
        UserError: it is no such file.
    """
    try:
        found = read_json(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {' '.join(str(error).split())}") from None
    history = found.get(HISTORY) if isinstance(found, dict) else None
    if not isinstance(history, list) or not all(isinstance(one, dict) for one in history):
        raise UserError(
            f"{path} has no list {HISTORY!r} of objects; expected the file that Trainer writes"
        )
    if not history:
        raise UserError(f"{path} has an empty {HISTORY!r}: nothing was logged")
    return table_of(history, path)


def list_latest(files: list[Path]) -> list[Path]:
    """Return the last state of each run: every checkpoint keeps the whole history up to it."""
    latest: dict[Path, tuple[float, Path]] = {}
    for path in files:
        inner, run = path.parent, find_run(path)
        number = inner.name.removeprefix("checkpoint-")
        rank = float(number) if run != inner else float("inf")  # beside the model: written last
        latest[run] = max(latest.get(run, (-1.0, path)), (rank, path))
    return [path for _, path in latest.values()]


def find_run(path: Path) -> Path:
    """Return the folder of the run that a log is of; a folder is its own."""
    inner = path if path.is_dir() else path.parent
    return inner.parent if CHECKPOINT.match(inner.name) else inner
