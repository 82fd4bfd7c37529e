"""Reads the history that the Trainer of Hugging Face keeps in trainer_state.json."""

import math
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerlab.errors import UserError
from layerlab.logs.formats.tables import table_of
from layerlab.logs.run_names import CHECKPOINT
from layerlab.records.parse import read_json

if TYPE_CHECKING:
    import pyarrow as pa

NAME, HISTORY = "trainer_state.json", "log_history"


def read_trainer_state(path: Path) -> "pa.Table":
    """Read what was logged, a row for each entry of the history.

    Raises:
        UserError: it is no such file.
    """
    history = _read_history(path)
    if not history:
        raise UserError(f"{path} has an empty {HISTORY!r}: nothing was logged")
    return table_of(history, path)


def read_planned(path: Path) -> int | None:
    """Return the updates that the run of a state was to make, if that is known."""
    found = read_json(path).get("max_steps")
    return found if isinstance(found, int) and found > 0 else None


def _read_history(path: Path) -> list[dict[str, Any]]:
    try:
        found = read_json(path)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read: {' '.join(str(error).split())}; copy the file anew, or leave "
            "it out"
        ) from None
    history = found.get(HISTORY) if isinstance(found, dict) else None
    if not isinstance(history, list) or not all(isinstance(one, dict) for one in history):
        raise UserError(
            f"{path} has no list {HISTORY!r} of objects; expected the file that Trainer writes"
        )
    return history


def list_latest(files: list[Path]) -> list[Path]:
    """Return the last state of each run: every checkpoint keeps the whole history up to it.

    Raises:
        UserError: states beside each other are of two runs: that beside the model, which is
            written last, knows less than a checkpoint, or they tell of one step in two ways.
    """
    runs: dict[Path, dict[float, Path]] = {}
    for path in files:
        inner, run = path.parent, find_run(path)
        number = inner.name.removeprefix("checkpoint-")
        runs.setdefault(run, {})[float(number) if run != inner else math.inf] = path
    for states in runs.values():
        _check_one_run([states[one] for one in sorted(states)])
    return [states[max(states)] for states in runs.values()]


def _check_one_run(states: Sequence[Path]) -> None:
    """Refuse states that do not go on with what those before them know; the last is named."""
    if len(states) < 2:
        return
    final = states[-1]
    whole = _read_history(final)
    for state in states[-2::-1]:
        known = _read_history(state)
        if (further := _find_last(known)) > (last := _find_last(whole)):
            raise UserError(
                f"{final} ends at step {last:g}, and {state.parent.name} beside it at step "
                f"{further:g}: two runs, or one that went on; delete the state that is not of the "
                "run"
            )
        pairs = zip_longest(known, whole[: len(known)])
        # As text: no NaN is equal to another.
        if differ := next((one for one, other in pairs if repr(one) != repr(other)), None):
            raise UserError(
                f"{state} tells of step {differ.get('step')} otherwise than {final}, whose history "
                "goes on with its own: two runs in one folder; delete the checkpoints that are "
                "not of the run"
            )


def _find_last(history: list[dict[str, Any]]) -> float:
    steps = (row.get("step") for row in history)
    return max((one for one in steps if isinstance(one, int | float)), default=0)


def find_run(path: Path) -> Path:
    """Return the folder of the run that a log is of; a folder is its own."""
    inner = path if path.is_dir() else path.parent
    return inner.parent if CHECKPOINT.match(inner.name) else inner
