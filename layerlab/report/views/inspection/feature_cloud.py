"""The features of frequent tokens as the page shows them: points in three dimensions, by layer."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from layerlab.records.json_values import Json
from layerlab.report.views import text
from layerlab.report.views.curves import short

KIND = "features"
# Coordinates are whole numbers up to this, as shares of the largest of their layer.
STEPS = 999
DIGITS = 4
# Of one page; of a model without room for all layers, some are kept, evenly spaced.
BYTES = 300_000
FEWEST = 3


def pictures(report: Mapping[str, Any], name: str, budget: int = BYTES) -> list[Json]:
    """Return the clouds of a measure, in the order of the models, with as many layers as fit."""
    stored = report.get("pictures", {}).get(name, {})
    found = [
        (index, stored[model["name"]])
        for index, model in enumerate(report["models"])
        if isinstance(stored.get(model["name"]), Mapping)
        and stored[model["name"]].get("kind") == KIND
    ]
    return [
        {"model": index, **_thin(cloud(picture), budget // len(found))} for index, picture in found
    ]


def cloud(picture: Mapping[str, Any]) -> Json:
    """Return one model's points, rounded to what a screen can show."""
    reach = [max(map(abs, _find_known(layer)), default=0.0) for layer in picture["points"]]
    return {
        "kind": KIND,
        "skip": int(picture["skip"]),
        "words": [
            {"token": text.token(str(word["token"])), "count": int(word["count"])}
            for word in picture["words"]
        ],
        "places": [[[int(s), int(p)] for s, p in places] for places in picture["places"]],
        "layers": [int(layer) for layer in picture["layers"]],
        "shares": [[short(share, DIGITS) for share in shares] for shares in picture["shares"]],
        "reach": [short(most, DIGITS) for most in reach],
        "points": [
            [_steps(word, most) for word in layer]
            for layer, most in zip(picture["points"], reach, strict=True)
        ],
    }


def choose_layers(count: int, most: int) -> list[int]:
    """Choose at most so many layers, evenly spaced, the first and the last among them.

    Example:
        >>> choose_layers(9, 3), choose_layers(2, 3)
        ([0, 4, 8], [0, 1])
    """
    if count <= most:
        return list(range(count))
    return [round(index * (count - 1) / (most - 1)) for index in range(most)]


def _thin(view: Json, budget: int) -> Json:
    costs = [len(json.dumps(layer, separators=(",", ":"))) for layer in view["points"]]
    room = budget - len(json.dumps(view["places"], separators=(",", ":")))
    fitting = max(FEWEST, room // max([*costs, 1]))
    kept = choose_layers(len(costs), fitting)
    return {
        **view,
        **{
            name: [view[name][index] for index in kept]
            for name in ("layers", "shares", "reach", "points")
        },
    }


def _find_known(layer: Iterable[Iterable[Iterable[Any]]]) -> list[float]:
    return [
        float(value) for word in layer for point in word for value in point if value is not None
    ]


def _steps(points: Sequence[Sequence[Any]], most: float) -> list[list[int | None]]:
    """Return the points in whole steps, by direction, so that a picture takes them as they are."""
    return [
        [
            None if point[axis] is None else round(STEPS * point[axis] / (most or 1))
            for point in points
        ]
        for axis in range(3)
    ]
