"""What a folder remembers of a run between two sittings: its plan, and its newest checkpoint."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from layerlab import UserError
from layerlab.disk import write_file
from layerlab.domain import shown

PLAN = "plan.json"


def agree(out: Path, plan: Mapping[str, Any]) -> None:
    """Keep what a run is begun with, or compare it with what it was begun with.

    Raises:
        UserError: the folder holds a run that was begun with something else.
    """
    plan = json.loads(json.dumps(plan))
    file = out / PLAN
    if not file.is_file():
        write_file(file, json.dumps(plan, indent=1, ensure_ascii=False) + "\n")
        return
    kept = json.loads(file.read_text(encoding="utf-8"))
    if other := [name for name, value in plan.items() if kept.get(name) != value]:
        raise UserError(
            f"{out} holds a run with another {other[0]} ({shown(kept.get(other[0]))}, not "
            f"{shown(plan[other[0]])}); name another folder, or remove that one"
        )


def newest(out: Path) -> str | None:
    """The newest checkpoint that was written to its end: its state is written last."""
    found = []
    for folder in out.glob("checkpoint-*"):
        try:
            state = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))
            found.append((int(state["global_step"]), str(folder)))
        except (OSError, ValueError, KeyError):
            continue
    return max(found)[1] if found else None
