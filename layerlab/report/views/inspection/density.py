"""Spectral densities of weight matrices as the page shows them: bars, and the fitted tail."""

from collections.abc import Mapping
from typing import Any

from layerlab.records.json_values import Json
from layerlab.report.views import text
from layerlab.report.views.curves import short

KIND = "density"
DIGITS = 5


def pictures(report: Mapping[str, Any], name: str) -> list[Json]:
    """Return the densities of a measure, in the order of the models."""
    stored = report.get("pictures", {}).get(name, {})
    found = [(index, stored.get(model["name"])) for index, model in enumerate(report["models"])]
    return [
        {"model": index, "kind": KIND, "entries": [_entry(one) for one in picture["entries"]]}
        for index, picture in found
        if isinstance(picture, Mapping) and picture.get("kind") == KIND
    ]


def _entry(one: Mapping[str, Any]) -> Json:
    numbers = {
        name: short(one[name], DIGITS) for name in ("low", "high", "alpha", "error", "start")
    }
    return {
        "layer": int(one["layer"]),
        "matrix": text.prose(str(one["matrix"]), 80),
        "counts": [int(count) for count in one["counts"]],
        "tail": int(one["tail"]),
        **numbers,
    }
