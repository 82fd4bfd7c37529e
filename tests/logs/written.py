"""Logs that tests write, and what they are read as."""

import csv
from pathlib import Path
from typing import Any

from layerlab.logs.read import find_logs, read_logs
from layerlab.logs.training_log import LogColumns, TrainingLog

LOSSES = [3.5, 3.25, 3.125]
ROWS = [{"step": 10 * n, "loss": loss} for n, loss in enumerate(LOSSES, start=1)]


def read(*paths: Path, **columns: str) -> list[TrainingLog]:
    found = find_logs([str(one) for one in paths], columns.get("name"))
    return list(read_logs(found, LogColumns(**columns)))


def write_csv(path: Path, rows: list[dict[str, Any]], between: str = ",") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=between)
        writer.writeheader()
        writer.writerows(rows)
    return path


def check(log: TrainingLog, arm: str, seed: str | None) -> None:
    assert (log.arm, log.seed) == (arm, seed)
    assert log.steps.tolist() == [10, 20, 30] and log.losses.tolist() == LOSSES


def put(path: Path, text: str) -> Path:
    path.write_text(text)
    return path
