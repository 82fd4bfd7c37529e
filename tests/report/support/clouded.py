"""Synthetic features of frequent tokens, shaped like real ones."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from layerlab.measures.quantities.features import MEASURES
from layerlab.records.layer_names import EMBEDDING
from tests.report.support.sample import HOSTILE, entry, sample

WORDS = [" the", HOSTILE, "\u202eabc", "\n", ",", "<b>x</b>", " of", " a"]


def clouded(
    names: Sequence[str] = ("pre-norm", "llama"), *, layers: int = 3, points: int = 12
) -> dict[str, Any]:
    """A report with the features of tokens of which some are hostile."""
    (measure,) = MEASURES
    report = sample(names, layers=layers)
    report["measures"].append(
        entry(measure, [f"{names[0]}: first token of each sequence left out"])
    )
    generator = np.random.default_rng(0)
    keys = [(name, layer) for name in names for layer in range(EMBEDDING, layers)]
    data: dict[str, list[Any]] = {
        "model": [name for name, _ in keys],
        "layer": [layer for _, layer in keys],
    }
    data |= {name: generator.uniform(0.1, 0.3, len(keys)).tolist() for name in measure.columns}
    report["frames"]["features"] = {"columns": list(data), "data": data}
    report.setdefault("pictures", {})["features"] = {
        name: picture(layers, points, seed) for seed, name in enumerate(names)
    }
    return report


def picture(layers: int, points: int, seed: int = 0) -> dict[str, Any]:
    """Each word a cluster of its own, larger in later layers."""
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(len(WORDS), 1, 3))
    drawn = [
        (layer + 1) * (centres + 0.2 * generator.normal(size=(len(WORDS), points, 3)))
        for layer in range(layers + 1)
    ]
    return {
        "kind": "features",
        "skip": 1,
        "words": [
            {"id": index, "token": word, "count": 100 - index} for index, word in enumerate(WORDS)
        ],
        "places": [[[index % 4, 7 * index + 1] for index in range(points)] for _ in WORDS],
        "layers": list(range(EMBEDDING, layers)),
        "shares": [[0.4, 0.2, 0.1] for _ in range(layers + 1)],
        "points": [layer.tolist() for layer in drawn],
    }
