"""Expands a run folder into its checkpoints, in the order of their steps."""

import re
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

_STEP = re.compile(r"checkpoint-(\d+)$")


def step(name: str) -> int | None:
    """Return the training step in a folder's name, as `transformers.Trainer` writes it.

    Unit: optimizer steps.

    Example:
        >>> step("run/checkpoint-500")
        500
    """
    found = _STEP.search(name.rstrip("/"))
    return int(found.group(1)) if found else None


def expand_runs(models: Sequence[Any]) -> list[Any]:
    """Expand the models, with a run folder replaced by its checkpoints and checkpoints in order."""
    listed = [one for model in models for one in _checkpoints(model)]
    steps = [step(str(one)) if isinstance(one, (str, PathLike)) else None for one in listed]
    if None in steps:
        return listed
    return sorted(listed, key=lambda one: step(str(one)) or 0)


def _checkpoints(model: Any) -> list[Any]:
    if not isinstance(model, (str, PathLike)) or _is_model(Path(model)):
        return [model]
    found = [str(path) for path in Path(model).glob("checkpoint-*") if _is_model(path)]
    own = [one for one in found if step(one) is not None]
    return sorted(own, key=lambda one: step(one) or 0) or [model]


def _is_model(folder: Path) -> bool:
    """Return whether a folder holds a model, or an adapter of one."""
    return any((folder / f"{kind}config.json").exists() for kind in ("", "adapter_"))
