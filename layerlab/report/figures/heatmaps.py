"""Figures for papers that are no curves: maps of heads, of attention, of saliency; clouds."""

import base64
import zlib
from collections.abc import Sequence
from typing import Any

from layerlab.records.json_values import Json
from layerlab.records.layer_names import layer_name
from layerlab.report.figures.export import COLOURS, PAGE, Figure, axis, layout, plain
from layerlab.report.views.inspection.feature_cloud import STEPS, choose_layers

# Of a slider only some layers become files: those at these shares of the depth.
LAYERS = 3
# Points of a file, in both its projections together; an SVG names each of them.
MOST_POINTS = 2400
MARKS = ("circle", "square", "diamond", "cross")
BAR = {"thickness": 10, "outlinewidth": 0, "ticks": "outside", "ticklen": 3}
LETTERS = 10
# Stands where positions of a text are left out.
GAP = "⋯"


def heads(
    grid: Sequence[Sequence[float | None]],
    layers: Sequence[int],
    numbers: Sequence[int],
    column: str,
) -> Figure:
    """Return a map with one cell for each layer and head."""
    return _by_layer(grid, layers, numbers, column, axis("head", **_whole(numbers)))


def matrices(
    grid: Sequence[Sequence[float | None]],
    layers: Sequence[int],
    names: Sequence[str],
    column: str,
) -> Figure:
    """Return a map with one cell for each layer and weight matrix, in the model's order."""
    side = axis("", autorange="reversed", type="category")
    return _by_layer(grid, layers, [plain(name) for name in names], column, side)


def _by_layer(
    grid: Sequence[Sequence[float | None]],
    layers: Sequence[int],
    rows: Sequence[Any],
    column: str,
    side: dict[str, Any],
) -> Figure:
    trace = {
        "type": "heatmap",
        "x": list(layers),
        "y": list(rows),
        "z": [list(line) for line in grid],
        "colorscale": "Cividis",
        "colorbar": {**BAR, "title": {"text": plain(column.replace("_", " ")), "side": "right"}},
    }
    own = layout(
        xaxis=axis("layer", showgrid=False, **_whole(layers)), yaxis={**side, "showgrid": False}
    )
    return Figure(data=[trace], layout=own, height=min(480, 110 + 22 * len(rows)))


def attention(detail: Json) -> Figure:
    """Return the attention map that a finding opens: queries as rows, keys as columns."""
    tokens, own, positions = detail["tokens"], detail["own"], detail["positions"]
    rows = _unpack(detail["map"], len(tokens))
    keys, queries = _slots(positions), _slots([positions[key] for key in own])
    trace = _shade(
        [
            [
                None if query is None or key is None or key > own[query] else rows[query][key] / 255
                for key in keys
            ]
            for query in queries
        ],
        "attention weight",
    )
    named = [f"{position} {token}" for position, token in zip(positions, tokens, strict=True)]
    across = _some(range(len(keys)), [GAP if key is None else named[key] for key in keys])
    down = _some(
        range(len(queries)), [GAP if query is None else named[own[query]] for query in queries]
    )
    style = layout(
        xaxis=axis("key", showgrid=False, tickangle=-90, **across),
        yaxis=axis("query", showgrid=False, autorange="reversed", **down),
    )
    return Figure(data=[trace], layout=style, height=400)


def pages(measure: str, label: str, picture: Json) -> dict[str, Figure]:
    """Return the pictures of a measure of one model, at some of its layers."""
    draw = {"saliency": _saliency, "features": _cloud}.get(picture["kind"])
    layers = picture["mapped"] if picture["kind"] == "saliency" else picture["layers"]
    if draw is None:
        return {}
    return {
        f"{measure}-{label}-{layer_name(layers[at]).replace(' ', '-')}": draw(picture, at)
        for at in choose_layers(len(layers), LAYERS)
    }


def _saliency(picture: Json, at: int) -> Figure:
    """Return a map of tokens x channels, coloured by the root of the share of the largest."""
    bins, peak = picture["bins"], picture["peaks"][at] or 0.0
    rows = _unpack(picture["maps"][at], bins)
    trace = _shade([[row[bin] / 255 for row in rows] for bin in range(bins)], "|gradient|")
    marks = (0, 0.1, 0.25, 0.5, 1)
    trace["colorbar"] |= {
        "tickvals": [mark**0.5 for mark in marks],
        "ticktext": [f"{mark * peak:.2g}" for mark in marks],
    }
    first = [-(-bin * picture["width"] // bins) for bin in range(bins)]
    own = layout(
        xaxis=axis(
            "token", showgrid=False, tickangle=-90, **_some(range(len(rows)), picture["tokens"])
        ),
        yaxis=axis("channel", showgrid=False, **_some(range(bins), first, 8)),
    )
    return Figure(data=[trace], layout=own, width=PAGE, height=360)


def _cloud(picture: Json, at: int) -> Figure:
    """Return two projections of the points, on one scale."""
    scale = (picture["reach"][at] or 0.0) / STEPS
    most = 1.05 * (picture["reach"][at] or 1.0)
    shares = ["" if share is None else f" ({share:.1%})" for share in picture["shares"][at]]
    named = [f"direction {number + 1}{share}" for number, share in enumerate(shares)]
    data = []
    for word, points in enumerate(picture["points"][at]):
        kept = _thin(points, MOST_POINTS // (2 * len(picture["words"])), scale)
        trace: Json = {
            "type": "scatter",
            "mode": "markers",
            "name": plain(picture["words"][word]["token"]),
            "marker": {
                "size": 5,
                "symbol": MARKS[word % len(MARKS)],
                "color": COLOURS[word % len(COLOURS)],
                "opacity": 0.75,
            },
            "x": kept[0],
        }
        data.append({**trace, "y": kept[1]})
        data.append({**trace, "y": kept[2], "xaxis": "x2", "yaxis": "y2", "showlegend": False})
    ends = {"range": [-most, most], "nticks": 6, "constrain": "domain"}
    own = layout(
        xaxis=axis(named[0], domain=[0, 0.44], **ends),
        yaxis=axis(named[1], scaleanchor="x", **ends),
        xaxis2=axis(named[0], domain=[0.56, 1], anchor="y2", **ends),
        yaxis2=axis(named[2], scaleanchor="x2", anchor="x2", **ends),
        showlegend=True,
    )
    own["margin"] = {**own["margin"], "t": 34}
    own["legend"] = {**own["legend"], "itemsizing": "constant"}
    return Figure(data=data, layout=own, width=PAGE, height=430)


def _thin(points: Sequence[Sequence[int | None]], most: int, scale: float) -> list[list[Any]]:
    count = len(points[0])
    kept = range(0, count, -(-count // most) or 1) if count else range(0)
    return [
        [None if axis[index] is None else axis[index] * scale for index in kept]  # type: ignore[operator]
        for axis in points
    ]


def _slots(positions: Sequence[int]) -> list[int | None]:
    """Return the index of every position in order, and None at each jump.

    Example:
        >>> _slots([0, 1, 7])
        [0, 1, None, 2]
    """
    slots: list[int | None] = []
    for index, position in enumerate(positions):
        if index and position != positions[index - 1] + 1:
            slots.append(None)
        slots.append(index)
    return slots


def _shade(grid: list[list[float | None]], title: str) -> dict[str, Any]:
    return {
        "type": "heatmap",
        "z": grid,
        "colorscale": "Cividis",
        "zmin": 0,
        "zmax": 1,
        "colorbar": {**BAR, "title": {"text": title, "side": "right"}},
    }


def _unpack(packed: str, width: int) -> list[bytes]:
    """Unpack rows of bytes that were deflated and written in base64."""
    flat = zlib.decompress(base64.b64decode(packed))
    return [flat[start : start + width] for start in range(0, len(flat), width)]


def _some(places: Sequence[int], names: Sequence[Any], most: int = 40) -> dict[str, Any]:
    """Return names for places, no more than there is room for."""
    step = -(-len(places) // most) or 1
    return {
        "tickvals": list(places[::step]),
        "ticktext": [plain(str(name)[:12]) for name in names[::step]],
        "tickfont": {"size": LETTERS},
    }


def _whole(numbers: Sequence[int]) -> dict[str, Any]:
    return {"dtick": 1} if len(numbers) < 14 else {}
