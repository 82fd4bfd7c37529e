"""Figures for papers of spectral densities of weight matrices, each with its fitted tail."""

import math
from itertools import pairwise
from typing import Any

from layerlab.records.json_values import Json
from layerlab.records.layer_names import layer_name
from layerlab.report.figures.export import COLOURS, Figure, axis, layout, plain
from layerlab.report.views.inspection.feature_cloud import choose_layers

# Of each kind of matrix only those at these shares of the depth become files.
LAYERS = 3
POINTS = 24


def pages(measure: str, label: str, picture: Json) -> dict[str, Figure]:
    """Return the densities of a model, of each kind of matrix at some of its layers."""
    found = {}
    for name in dict.fromkeys(entry["matrix"] for entry in picture["entries"]):
        own = [entry for entry in picture["entries"] if entry["matrix"] == name]
        for at in choose_layers(len(own), LAYERS):
            layer = layer_name(own[at]["layer"]).replace(" ", "-")
            found[f"{measure}-{label}-{name}-{layer}"] = density(own[at])
    return found


def density(entry: Json) -> Figure:
    """Return the density of eigenvalues over bins of equal width in the logarithm."""
    counts, low, high = entry["counts"], entry["low"], entry["high"]
    step, total = (high - low) / len(counts), sum(counts)
    edges = [10 ** (low + index * step) for index in range(len(counts) + 1)]
    widths = [after - before for before, after in pairwise(edges)]
    bars = {
        "type": "bar",
        "name": "eigenvalues",
        "x": [10 ** (low + (index + 0.5) * step) for index in range(len(counts))],
        "y": [
            count / total / width if count else None
            for count, width in zip(counts, widths, strict=True)
        ],
        "width": widths,
        "marker": {"color": COLOURS[0], "opacity": 0.5},
    }
    tail = _tail(entry, total) if entry["alpha"] is not None else []
    own = layout(
        xaxis=axis(plain(f"eigenvalue of {entry['matrix']}"), type="log", exponentformat="power"),
        yaxis=axis("density", type="log", exponentformat="power"),
        showlegend=bool(tail),
    )
    return Figure(data=[bars, *tail], layout=own, height=300)


def _tail(entry: Json, total: int) -> list[dict[str, Any]]:
    start, alpha = entry["start"], entry["alpha"]
    begin = math.log10(start)
    steps = [begin + n / (POINTS - 1) * (entry["high"] - begin) for n in range(POINTS)]
    scale = entry["tail"] / total * (alpha - 1) / start
    line = {
        "type": "scatter",
        "mode": "lines",
        "name": f"tail, exponent {alpha:.3g}",
        "x": [10**value for value in steps],
        "y": [scale * (10**value / start) ** -alpha for value in steps],
        "line": {"color": COLOURS[1], "width": 2},
    }
    return [line]
