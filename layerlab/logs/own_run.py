"""Reads a run folder of `layerlab train` as a log: without its text, and without its recipe."""

from pathlib import Path

import numpy as np

from layerlab.errors import UserError
from layerlab.logs.training_log import TrainingLog
from layerlab.records.run import read_record
from layerlab.records.settings import flatten

MANIFEST = "manifest.json"
# What an arm is, and what is said of it.
ARM = ("model", "compare", "name", "about", "inferred", "ladder", "run")


def read_own(folder: Path, metric: str | None = None) -> TrainingLog:
    """Read the evaluations of a run.

    Args:
        metric: nats, bits_per_byte or accuracy; nats where it is None.

    Raises:
        UserError: the folder is damaged, or the run was never evaluated.
    """
    record, name = read_record(folder), metric or "nats"
    events = [] if record is None else record.events
    points = [one for one in events if one.get("kind") == "evaluation" and name in one]
    if record is None or not points:
        raise UserError(f"{folder} has no evaluation with {name!r}; leave the folder out")
    recipe = record.manifest["recipe"]
    numbers = [float("nan") if one[name] is None else float(one[name]) for one in points]
    return TrainingLog(
        place=str(folder),
        arm=record.arm,
        seed=str(record.seed),
        steps=np.array([float(one["update"]) for one in points]),
        losses=np.array(numbers),
        loss_name=name,
        config=dict(flatten({k: v for k, v in recipe.items() if k not in ARM})),
        diverged=record.diverged,
    )
