"""Pictures of principal components: shares and cosines by depth, and clouds of frequent tokens."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from layerlab.studies.engine.pictures import Curve, curves, plane
from layerlab.studies.engine.study import Picture
from layerlab.studies.support import small_models

COLUMNS = ("first", "second", "third", "cosine", "apart", "kept")
FIRST, SECOND, THIRD, COSINE, APART, KEPT = range(len(COLUMNS))


def _lines(
    parts: small_models.Parts, built: Mapping[str, np.ndarray], columns: list[int]
) -> list[Curve]:
    lines = []
    every = {f"{arm}, twin": part["layers"] for arm, part in parts.items()} | dict(built)
    for kind, (name, layers) in enumerate(every.items()):
        values = layers[..., columns].sum(-1)
        depth = values.shape[1] - 1
        lines.append(
            Curve(
                name=name,
                x=[layer / depth for layer in range(depth + 1)],
                y=values.mean(0).tolist(),
                kind=kind,
                style="solid" if "twin" in name else "dash",
            )
        )
    return lines


def shares(parts: small_models.Parts, built: Mapping[str, np.ndarray]) -> Picture:
    """Plot the share of three components together."""
    return curves(
        "shares",
        "Share of the variance in three components (mean of seeds, of draws)",
        _lines(parts, built, [FIRST, SECOND, THIRD]),
        x="depth: 0 behind the embedding, 1 behind the last layer",
        y="share of the variance",
        log="",
    )


def cosines(parts: small_models.Parts, built: Mapping[str, np.ndarray]) -> Picture:
    """Plot the isotropy, as the mean cosine between tokens."""
    return curves(
        "cosine",
        "Mean cosine between tokens (mean of seeds, of draws)",
        _lines(parts, built, [COSINE]),
        x="depth: 0 behind the embedding, 1 behind the last layer",
        y="cosine",
        log="",
    )


def cloud(arm: str, one: Mapping[str, Any], layer: str, file: str = "") -> Picture:
    """Plot the most frequent tokens in one layer of a twin, or of a model of a user.

    Args:
        file: what stands for its name in that of the picture, which is a file's.
    """
    from layerlab.report.figures.export import plain

    share = sum(one["layers"][int(layer)][index] for index in (FIRST, SECOND, THIRD))
    points = [
        Curve(name=plain(repr(word)), x=places[0], y=places[1], kind=kind)
        for kind, (word, places) in enumerate(zip(one["words"], one["drawn"][layer], strict=True))
    ]
    return plane(
        f"{file or arm}-{layer}",
        f"Frequent tokens behind block {layer} of {arm}; three components hold {share:.1%}",
        [],
        points,
        x="first component",
        y="second component",
    )
