"""A synthetic saliency, shaped like a real one."""

import base64
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from layerlab.measures.quantities.saliency import MEASURES
from layerlab.records.layer_names import EMBEDDING
from tests.report.support.sample import HOSTILE, WORDS, entry, sample

BINS, WIDTH = 4, 16


def looked(
    names: Sequence[str] = ("pre-norm", "llama"), *, tokens: int = 11, layers: int = 3
) -> dict[str, Any]:
    """A report with a saliency whose tokens are hostile; the last token is the position."""
    (measure,) = MEASURES
    report = sample(names, layers=layers)
    words = [WORDS[i % len(WORDS)] for i in range(tokens)]
    generator = np.random.default_rng(0)
    report["measures"].append(entry(measure))
    keys = [
        (name, layer, place)
        for name in names
        for layer in range(EMBEDDING, layers)
        for place in range(tokens)
    ]
    data: dict[str, list[Any]] = {
        "model": [name for name, _, _ in keys],
        "layer": [layer for _, layer, _ in keys],
        "position": [place for _, _, place in keys],
        "token": [words[place] for _, _, place in keys],
    }
    data |= {name: generator.uniform(0.1, 1, len(keys)).tolist() for name in measure.columns}
    data["product"] = [
        (-1) ** place * value
        for value, place in zip(data["product"], data["position"], strict=True)
    ]
    report["frames"]["saliency"] = {"columns": list(data), "data": data}
    report["pictures"] = {"saliency": {name: picture(words, layers) for name in names}}
    return report


def picture(words: Sequence[str], layers: int) -> dict[str, Any]:
    token = {"id": 7, "token": HOSTILE, "probability": 0.25, "logit": 3.0, "rank": 2}
    bytes_ = bytes(place % 256 for place in range(len(words) * BINS))
    return {
        "kind": "saliency",
        "of": "logit",
        "length": len(words),
        "position": len(words) - 1,
        "positions": list(range(len(words))),
        "tokens": list(words),
        "target": token,
        "foil": None,
        "prediction": {**token, "token": " King", "rank": 1},
        "earlier": [1, 2],
        "width": WIDTH,
        "bins": BINS,
        "layers": list(range(EMBEDDING, layers)),
        "peaks": [1.0 + layer for layer in range(layers + 1)],
        "maps": [base64.b64encode(zlib.compress(bytes_)).decode()] * (layers + 1),
    }
