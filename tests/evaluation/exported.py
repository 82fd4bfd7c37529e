"""The tasks as files, in lm-eval's own hands."""

import atexit
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from layerlab.evaluation.tasks.configs import export_tasks


@cache
def exported() -> Path:
    """The folder of all tasks, written once in a process."""
    place = TemporaryDirectory()
    atexit.register(place.cleanup)
    return export_tasks(Path(place.name) / "tasks")


@cache
def managed(**changes: Any) -> Any:
    from lm_eval.tasks import TaskManager

    return TaskManager(include_path=str(exported()), include_defaults=False, metadata=changes)
