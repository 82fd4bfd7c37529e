"""The saliency of a prompt as the page shows it: coloured tokens, and a map token x channel."""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from layerlab.records.json_values import Json
from layerlab.report.views import text
from layerlab.report.views.inspection.feature_cloud import choose_layers

KIND = "saliency"
SCORES = ("l1", "l2", "product")
DIGITS = 3
# Of one page; a model with more has fewer maps, and report.json has all.
BYTES = 300_000
FEWEST = 3


def pictures(
    report: Mapping[str, Any], name: str, rows: pd.DataFrame, budget: int = BYTES
) -> list[Json]:
    """Return the pictures of a measure, in the order of the models, with as many maps as fit.

    Args:
        name: of the measure.
        rows: its frame, by model, layer and position.
    """
    stored = report.get("pictures", {}).get(name, {})
    names = [str(model["name"]) for model in report["models"]]
    known = [name for name in names if drawable(stored.get(name))]
    return [
        {
            "model": names.index(name),
            **_thin(_view(stored[name], rows[rows["model"] == name]), budget // len(known)),
        }
        for name in known
    ]


def drawable(picture: Any) -> bool:
    """Return whether this is a picture of a saliency."""
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
        "earlier": [index for index, position in enumerate(positions) if position in recurring],
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


def _thin(view: Json, budget: int) -> Json:
    """Keep as many maps as there is room for beside the scores, evenly spaced over the layers."""
    scores = sum(len(str(line)) for lines in view["scores"].values() for line in lines)
    largest = max([*map(len, view["maps"]), 1])
    fitting = max(FEWEST, (budget - scores) // largest)
    kept = choose_layers(len(view["maps"]), fitting)
    parts = {name: [view[name][index] for index in kept] for name in ("mapped", "peaks", "maps")}
    return {**view, **parts}


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
    finite = isinstance(value, int | float) and value == value and abs(value) != float("inf")
    return float(f"{value:.{DIGITS}g}") if finite else None
