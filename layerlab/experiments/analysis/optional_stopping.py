"""Optional stopping: discloses seeds that were added after a verdict was seen.

p and intervals hold for seeds that were fixed before anything of the result was seen. A comparison
therefore keeps, as `looked`, the seeds that were planned when its verdicts were first shown.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from layerlab.errors import UserError
from layerlab.experiments.analysis.comparison import SCHEMA
from layerlab.records.parse import read_json

Content = Mapping[str, Any]
# Rows that show nothing of an arm's result.
_BLIND = ("baseline", "no verdict")


def disclose_added_seeds(content: Content, file: Path) -> dict[str, Any]:
    """Return the comparison of the first look's seeds, with a remark on seeds added later.

    Runs that went on after an interruption came later too, but their seeds were planned before.

    Args:
        content: that has just been judged.
        file: comparison.json of an earlier judging, where there was one.

    Raises:
        UserError: it is no comparison.
    """
    seen, earlier = _seen(content), _read(file)
    again = bool(_seen(earlier) & {run["run"] for run in content["runs"]})
    if not again and not seen:
        return dict(content)
    seeds = content["seeds"]
    first = earlier.get("looked", earlier["seeds"]) if again else seeds
    added = [seed for seed in seeds if seed not in first]
    told = [_remark(first, added)] if added else []
    return {**content, "looked": first, "remarks": [*content["remarks"], *told]}


def _seen(content: Content) -> set[str]:
    """Return the runs whose results an earlier table has shown, without baselines."""
    arms = {row["arm"] for row in content.get("rows", ()) if row["verdict"] not in _BLIND}
    return {run["run"] for run in content.get("runs", ()) if run["arm"] in arms}


def _read(file: Path) -> dict[str, Any]:
    try:
        found = read_json(file)
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        return {}
    try:
        _seen(found)
        seeds = [*found["seeds"], *found.get("looked", ())]
        if not all(isinstance(seed, int) for seed in seeds):
            raise ValueError("a seed is no whole number")
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UserError(
            f"{file} is no comparison that was written here; delete it, and what it tells of "
            "earlier looks goes with it"
        ) from None
    return found


def _remark(first: list[int], added: list[int]) -> str:
    return (
        f"seeds added after a look: {', '.join(map(str, added))}; a table of seeds "
        f"{', '.join(map(str, first))} had been shown before, and p and intervals do not account "
        "for that"
    )
