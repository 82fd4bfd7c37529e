"""Tells whether a checkpoint is of the run that is about to go on from it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from layerlab.errors import UserError
from layerlab.records.checkpoint_names import CHECKPOINTS
from layerlab.records.events import find_misfit
from layerlab.training.checkpoints.checkpoint import CheckpointState, Hasher, MisfitError, load
from layerlab.validation import short_repr

RUN = "run"  # the entry of a checkpoint's counters with the identity of its run


def load_own(
    identity: Mapping[str, str], folder: Path, hasher: Hasher
) -> tuple[CheckpointState | None, list[str]]:
    """Load a run's newest checkpoint that its journal fits, and notes on what was not taken.

    Checkpoints of earlier versions, which tell neither of their run nor of more than the number of
    events, are believed, with a note.

    Args:
        identity: of the run: what its checkpoints must agree in.
        folder: of the run.
        hasher: of files of a checkpoint; several processes may share the work.

    Raises:
        UserError: one is of another run, or none has the journal that it was written beside.
    """

    def check(path: Path, counters: Mapping[str, Any]) -> list[str]:
        notes = _check_run(identity, path, counters)
        if (why := find_misfit(folder, counters)) is not None:
            raise MisfitError(why)
        return notes

    return load(folder / CHECKPOINTS, check, hasher)


def _check_run(identity: Mapping[str, str], path: Path, counters: Mapping[str, Any]) -> list[str]:
    """Refuse a checkpoint that somebody moved here; whoever did may have no other copy of it."""
    if RUN not in counters:
        return [
            f"checkpoint {path.name} is of an earlier version, which did not keep what run it is "
            "of, nor a hash of its journal: both are believed"
        ]
    kept = counters[RUN] if isinstance(counters[RUN], dict) else {}
    for name, value in identity.items():
        if kept.get(name) != value:
            raise UserError(
                f"{path} is of another run: its {name} is {short_repr(kept.get(name))}, not "
                f"{short_repr(value)}; move it away, and the same command does without it"
            )
    return []
