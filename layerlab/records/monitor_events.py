"""What a run's journal holds of its monitor, with blocks counted from 0.

Journals of layerlab 0.1 call the readings `rows`. They count the embedding as layer 0 and the first
block as 1, but for readings of attention.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from layerlab.records.layer_names import EMBEDDING, layer_name

_OLDER = "rows"
_SHIFTED = ("relative_residual", "stream_norm", "growth", "gradient")
_NAMED = re.compile(r"\blayer \d+")


def renumber(events: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the events of a run in their order, those of an older monitor with today's layers."""
    older = False
    for event in events:
        kind = str(event.get("kind"))
        if kind == "monitor":
            older = _OLDER in event
        yield _CURRENT[kind](event) if older and kind in _CURRENT else dict(event)


def _readings(event: Mapping[str, Any]) -> dict[str, Any]:
    rows = event[_OLDER] if isinstance(event[_OLDER], list) else []
    kept = {name: value for name, value in event.items() if name != _OLDER}
    return {**kept, "readings": [_shift(row) for row in rows if isinstance(row, dict)]}


def _alarm(event: Mapping[str, Any]) -> dict[str, Any]:
    shifted = _shift(event)
    if shifted.get("layer") == event.get("layer"):
        return shifted
    named = _NAMED.sub(layer_name(shifted["layer"]), str(event.get("text")), count=1)
    return {**shifted, "text": named}


def _shift(row: Mapping[str, Any]) -> dict[str, Any]:
    layer = row.get("layer")
    if row.get("measure") not in _SHIFTED or not isinstance(layer, int):
        return dict(row)
    return {**row, "layer": layer + EMBEDDING}


_CURRENT = {"monitor": _readings, "alarm": _alarm}
