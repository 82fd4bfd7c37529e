"""Settings in which the manifests of runs agree or differ."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from layerlab.records.json_values import Json
from layerlab.records.run import SHARED
from layerlab.records.settings import flatten, matches
from layerlab.report.i18n.language import Label

# Names of a run, which tell it from others, and whether its speed counts; its sessions are compared
# before there is a page.
NAMES = frozenset({"schema", "run", "arm", "sittings", SHARED})
MOST = 12


def equality(manifests: Mapping[str, Any], declared: Sequence[str]) -> Json:
    """Sort the settings of runs into those that agree and those that differ.

    A setting that differs stands with each of its values and the arms that have it.

    Args:
        manifests: by the names of runs.
        declared: settings in which runs were allowed to differ; patterns.
    """
    known = [one for one in manifests.values() if isinstance(one, Mapping)]
    flat = [(str(one.get("arm", "")), dict(flatten(one))) for one in known]
    paths = sorted({path for _, one in flat for path in one})
    equal, differing = {}, []
    for path in paths:
        if path in NAMES:
            continue
        values: dict[str, list[str]] = {}
        for arm, one in flat:
            values.setdefault(format_value(one.get(path)), []).append(arm)
        if len(values) == 1:
            equal[path] = next(iter(values))
        else:
            known_cause = matches(path.removeprefix("recipe."), declared)
            differing.append({"path": path, "values": _share(values), "declared": known_cause})
    return {"equal": equal, "differing": differing, "runs": len(flat)}


def format_value(value: Any) -> str:
    """Format a value on one line, as JSON writes it, text without its quotes."""
    if isinstance(value, str):
        return value
    return "–" if value is None else json.dumps(value, ensure_ascii=False)


def _share(values: Mapping[str, Sequence[str]]) -> list[Json]:
    """Return each value with the arms that have it.

    Of many values, the first few and how many more.
    """
    found = [
        {"value": value, "arms": list(dict.fromkeys(arms))}
        for value, arms in list(values.items())[:MOST]
    ]
    more = len(values) - MOST
    return [*found, *([{"value": Label(f"and {more} more"), "arms": []}] if more > 0 else [])]
