"""Tells whether a checkpoint is of the run that is about to go on from it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from layerlab.errors import UserError
from layerlab.records.events import find_misfit
from layerlab.training.checkpoints.checkpoint import CheckpointState, MisfitError, load
from layerlab.training.checkpoints.result import CHECKPOINTS
from layerlab.training.run_spec import RunSpec
from layerlab.validation import short_repr

RUN = "run"  # the entry of a checkpoint's counters with the identity of its run


def load_own(run: RunSpec, folder: Path) -> tuple[CheckpointState | None, list[str]]:
    """Load a run's newest checkpoint that its journal fits, and notes on what was not taken.

    Checkpoints of earlier versions, which tell neither of their run nor of more than the number of
    events, are believed, with a note.

    Args:
        folder: of the run.

    Raises:
        UserError: one is of another run, or none has the journal that it was written beside.
    """

    def check(path: Path, counters: Mapping[str, Any]) -> list[str]:
        known = RUN in counters
        if known:
            _check_run(run, path, counters[RUN])
        if (why := find_misfit(folder, counters)) is not None:
            raise MisfitError(why)
        older = f"checkpoint {path.name} is of an earlier version, which did not keep what run it "
        return [] if known else [older + "is of, nor a hash of its journal: both are believed"]

    return load(folder / CHECKPOINTS, check)


def _check_run(run: RunSpec, path: Path, found: Any) -> None:
    """Refuse a checkpoint that somebody moved here; whoever did may have no other copy of it."""
    kept = found if isinstance(found, dict) else {}
    for name, value in run.identity.items():
        if kept.get(name) != value:
            raise UserError(
                f"{path} is of another run: its {name} is {short_repr(kept.get(name))}, not "
                f"{short_repr(value)}; move it away, and the same command does without it"
            )
