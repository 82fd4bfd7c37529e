"""The saliency of a prompt as the page shows it: coloured tokens, and a map token x channel."""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from layerlab.report.views import text

KIND = "saliency"
SCORES = ("l1", "l2", "product")
DIGITS = 3
# Of one page; a model for whose picture there is no room keeps its rows and its report.json.
BYTES = 2_000_000

Json = dict[str, Any]


def pictures(
    report: Mapping[str, Any], name: str, rows: pd.DataFrame, budget: int = BYTES
) -> list[Json]:
    """Return the pictures of a measure, in the order of the models, as long as there is room.

    Args:
        name: of the measure.
        rows: its frame, by model, layer and position.
    """
    stored = report.get("pictures", {}).get(name, {})
    found = list[Json]()
    for index, model in enumerate(report["models"]):
        picture = stored.get(model["name"])
        if not drawable(picture):
            continue
        view = _view(picture, rows[rows["model"] == model["name"]])
        cost = sum(map(len, view["maps"])) + sum(
            len(str(line)) for lines in view["scores"].values() for line in lines
        )
        if cost <= budget:
            found.append({"model": index, **view})
            budget -= cost
    return found


def drawable(picture: Any) -> bool:
    """Judge whether this is a picture of a saliency."""
    return isinstance(picture, Mapping) and picture.get("kind") == KIND


def _view(picture: Mapping[str, Any], rows: pd.DataFrame) -> Json:
    positions = [int(position) for position in picture["positions"]]
    recurring = {int(position) for position in picture["earlier"]}
    layers = [(int(str(layer)), part) for layer, part in rows.groupby("layer", sort=True)]
    return {
        "kind": KIND,
        "of": text.prose(str(picture["of"]), 40),
        "length": int(picture["length"]),
        "position": int(picture["position"]),
        "positions": positions,
        "tokens": [text.token(str(token)) for token in picture["tokens"]],
        "earlier": [index for index, place in enumerate(positions) if place in recurring],
        **{word: _word(picture[word]) for word in ("target", "foil", "prediction")},
        "width": int(picture["width"]),
        "bins": int(picture["bins"]),
        "layers": [layer for layer, _ in layers],
        "scores": {
            score: [_line(part, score, positions) for _, part in layers] for score in SCORES
        },
        "mapped": [int(layer) for layer in picture["layers"]],
        "peaks": [_number(peak) for peak in picture["peaks"]],
        "maps": [str(packed) for packed in picture["maps"]],
    }


def _word(given: Mapping[str, Any] | None) -> Json | None:
    if given is None:
        return None
    numbers = {name: _number(given[name]) for name in ("probability", "logit", "rank")}
    begun = {"word": text.token(str(given["word"]))} if "word" in given else {}
    return {"token": text.token(str(given["token"])), **begun, **numbers}


def _line(part: pd.DataFrame, score: str, positions: Iterable[int]) -> list[float | None]:
    """Return one layer's score at every position."""
    by = dict(zip(part["position"], part[score], strict=True))
    return [_number(by.get(position)) for position in positions]


def _number(value: Any) -> float | None:
    known = isinstance(value, int | float) and value == value and abs(value) != float("inf")
    return float(f"{value:.{DIGITS}g}") if known else None
