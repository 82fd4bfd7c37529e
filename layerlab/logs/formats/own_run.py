"""Reads a run folder of `layerlab train` as a log, with all that its manifest says of it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from layerlab.errors import UserError
from layerlab.logs.training_log import TrainingLog
from layerlab.records.run import SHARED, read_record
from layerlab.records.settings import flatten, matches

MANIFEST = "manifest.json"
# What an arm is, what follows from that (the account of the model), and what names a run.
ARM = ("recipe.model.options", "recipe.model.load", "model", "match", "arm")
NAMES = ("run", "recipe.train.seed", "data.notes", "sittings", SHARED)
# It leaves the tokens of an update; what they are rounded to only where they are rounded.
MICRO = ("micro_batch", "recipe.train.micro_batch_size")


def read_own(folder: Path, metric: str | None = None) -> TrainingLog:
    """Read the evaluations of a run, of which one that has not finished may have none yet.

    Args:
        metric: nats, bits_per_byte or accuracy; nats where it is None.

    Raises:
        UserError: the folder is damaged, or the run was never evaluated.
    """
    record, name = read_record(folder), metric or "nats"
    events = [] if record is None else record.events
    points = [one for one in events if one.get("kind") == "evaluation" and name in one]
    if record is None or (record.finished and not points):
        raise UserError(f"{folder} has no evaluation with {name!r}; leave the folder out")
    numbers = [float("nan") if one[name] is None else float(one[name]) for one in points]
    return TrainingLog(
        place=str(folder),
        arm=record.arm,
        seed=str(record.seed),
        steps=np.array([float(one["update"]) for one in points]),
        losses=np.array(numbers),
        loss_name=name,
        config=_settings(record.manifest),
        diverged=record.diverged,
        finished=record.finished,
    )


def _settings(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return what runs of two arms should have in common, those of a recipe by its paths."""
    found = dict(flatten(manifest))
    beside = [*ARM, *NAMES, *(MICRO if found.get("recipe.emulate.format") is None else ())]
    return {
        path.removeprefix("recipe."): value
        for path, value in found.items()
        if not matches(path, beside)
    }
