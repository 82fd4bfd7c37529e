"""Every picture of a report as a figure for a paper, from the numbers that its page draws."""

import re
from collections.abc import Sequence
from typing import Any

from layerlab.records.json_values import Json
from layerlab.records.layer_names import EMBEDDING
from layerlab.report.figures import densities, heatmaps
from layerlab.report.figures.export import COLOURS, Figure, axis, layout, plain
from layerlab.report.views.inspection import density
from layerlab.report.views.inspection import frames as inspection

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "star")
DASHES = ("dash", "dot", "dashdot", "longdash", "longdashdot")
# From this ratio on, positive readings are read better in powers.
WIDE = 100
MOST_BANDS = 3
TICKS = 14


def figures(report: Json) -> dict[str, Figure]:
    """Return every picture of a report (a `report.json`) by its file name without an ending."""
    view = inspection.compact(report)
    labels = slugs([str(model["name"]) for model in view["models"]])
    found: dict[str, Figure] = {}
    for measure in view["measures"]:
        for column in measure["plot"]:
            found |= _curves(view, measure, column)
            found |= _steps(view, measure, column)
            if measure["per_head"]:
                found |= _maps(view, measure, column, labels)
            elif measure["category"] == "matrix":
                found |= _matrix_maps(view, measure, column, labels)
        found |= _bars(measure)
        for picture in measure.get("pictures", ()):
            draw = densities.pages if picture["kind"] == density.KIND else heatmaps.pages
            found |= draw(measure["name"], labels[picture["model"]], picture)
    for index, detail in enumerate(view["details"].values()):
        if detail["kind"] == "attention":
            name = f"layer-{detail['layer']}-head-{detail['head']}"
            found[f"map-{index + 1}-{name}"] = heatmaps.attention(detail)
    return dict(zip(slugs(list(found), 120), found.values(), strict=True))


def slugs(names: Sequence[str], most: int = 40) -> list[str]:
    """Turn names into parts of file names, all different.

    Example:
        >>> slugs(["pre-norm", "../a b", "a b"])
        ['pre-norm', 'a-b', 'a-b-2']
    """
    found: list[str] = []
    for name in names:
        own = re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.")[:most] or "model"
        tries = [own, *(f"{own}-{number}" for number in range(2, len(names) + 2))]
        found.append(next(one for one in tries if one.lower() not in map(str.lower, found)))
    return found


def _curves(view: Json, measure: Json, column: str) -> dict[str, Figure]:
    """Return a column over the layers, all models together: one figure for each kind of row."""
    found = {}
    for kind, name in enumerate(measure["kinds"] or [""]):
        own = [one for one in measure["series"] if one["kind"] == kind]
        visible = [one for one in own if _drop_unknown(one["values"][column]["mean"])]
        if visible:
            parts = [measure["name"], column, *slugs([name] if name else [])]
            drawn = _curve(view, measure, column, visible)
            found["-".join(parts)] = _tell_infinite(drawn, view, own, column)
    return found


def _tell_infinite(drawn: Figure, view: Json, series: Sequence[Json], column: str) -> Figure:
    """Write below a figure how many readings are infinite, which no picture has a place for."""
    lines = []
    for model in dict.fromkeys(one["model"] for one in series):
        own = [one["infinite"].get(column) for one in series if one["model"] == model]
        if counted := [one for one in own if one]:
            count = f"{sum(one['count'] for one in counted):,}"
            # How many a series without infinite ones has is not told.
            every = f" of {counted[0]['readings']:,}" if len(own) == 1 else ""
            name = plain(view["models"][model]["name"])
            lines.append(f"{name}: {count}{every} readings are infinite, and not drawn")
    title = drawn.layout["xaxis"]["title"]
    title["text"] = "<br>".join([title["text"], *lines])
    return drawn


def _curve(view: Json, measure: Json, column: str, curves: Sequence[Json]) -> Figure:
    bounds = [bound for bound in measure["bounds"] if bound["column"] == column]
    log = _in_powers(curves, column, bounds)
    data: list[dict[str, Any]] = []
    for series in curves:
        line = _line(view, series, column)
        data += _band(view, series, column, line["x"]) if len(curves) <= MOST_BANDS else []
        data.append(line)
    for number, bound in enumerate(bounds):
        data += _limits(view, curves, bound["limit"], DASHES[number % len(DASHES)])
    if log:
        for trace in data:
            trace["y"] = [value if value and value > 0 else None for value in trace["y"]]
    scale = {"type": "log", "exponentformat": "power"} if log else _near(curves, column)
    named = sum(trace.get("showlegend", True) for trace in data)
    own = layout(
        xaxis=axis("relative depth") if view["aligned"] else _layers(curves),
        yaxis=axis(plain(column.replace("_", " ")), **scale),
        showlegend=named > 1,
    )
    own["margin"] = {**own["margin"], "t": 12 + 18 * -(-named // 2) * (named > 1)}
    return Figure(data=data, layout=own, height=280 + own["margin"]["t"])


def _layers(curves: Sequence[Json]) -> dict[str, Any]:
    """Return an axis of layers; the embedding is named a line below the numbers."""
    layers = sorted({layer for series in curves for layer in series["layers"]})
    if EMBEDDING not in layers:
        return axis("layer")
    kept = [n for n in layers if n == EMBEDDING or n % -(-len(layers) // TICKS) == 0]
    names = ["<br>embedding" if n == EMBEDDING else str(n) for n in kept]
    return axis("layer", tickvals=kept, ticktext=names)


def _steps(view: Json, measure: Json, column: str) -> dict[str, Figure]:
    """Return a column over training, where the models are checkpoints of a run."""
    models = view["models"]
    curves = [
        one
        for one in measure["series"]
        if one["kind"] == 0
        and models[one["model"]]["step"] is not None
        and _drop_unknown(one["values"][column]["mean"])
    ]
    if len(curves) < 2:
        return {}
    curves.sort(key=lambda one: models[one["model"]]["step"])
    means = [_leave_embedding(one["layers"], one["values"][column]["mean"]) for one in curves]
    cleaned = [_drop_unknown(mean) for mean in means]
    lines = {
        "mean over layers": [sum(values) / len(values) if values else None for values in cleaned],
        "first layer": [mean[0] for mean in means],
        "middle layer": [mean[len(mean) // 2] for mean in means],
        "last layer": [mean[-1] for mean in means],
    }
    data = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": name,
            "x": [models[one["model"]]["step"] for one in curves],
            "y": values,
            "line": {"color": COLOURS[number], "width": 2.4 if number == 0 else 1.4},
            "marker": {"size": 6, "symbol": SYMBOLS[number], "color": COLOURS[number]},
        }
        for number, (name, values) in enumerate(lines.items())
    ]
    own = layout(
        xaxis=axis("training step"), yaxis=axis(plain(column.replace("_", " "))), showlegend=True
    )
    own["margin"] = {**own["margin"], "t": 48}
    drawn = Figure(data=data, layout=own, height=328)
    return {f"{measure['name']}-{column}-steps": _tell_infinite(drawn, view, curves, column)}


def _leave_embedding(layers: Sequence[int], values: list[Any]) -> list[Any]:
    """Return the values of the layers; that of the embedding, which is none, if it is alone."""
    return values[1:] if layers[0] == EMBEDDING and len(layers) > 1 else values


def _line(view: Json, series: Json, column: str) -> dict[str, Any]:
    index = series["model"]
    colour = COLOURS[index % len(COLOURS)]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": plain(view["models"][index]["name"]),
        "x": _places(view, series),
        "y": list(series["values"][column]["mean"]),
        "line": {"color": colour, "width": 1.8},
        "marker": {"size": 6, "symbol": SYMBOLS[index % len(SYMBOLS)], "color": colour},
    }


def _band(view: Json, series: Json, column: str, places: list[Any]) -> list[dict[str, Any]]:
    values = series["values"][column]
    if "low" not in values:
        return []
    red, green, blue = (
        int(COLOURS[series["model"] % len(COLOURS)][at : at + 2], 16) for at in (1, 3, 5)
    )
    edge = {"type": "scatter", "mode": "lines", "line": {"width": 0}, "showlegend": False}
    fill = {"fill": "tonexty", "fillcolor": f"rgba({red},{green},{blue},0.14)"}
    return [
        {**edge, "x": places, "y": list(values["low"])},
        {**edge, "x": places, "y": list(values["high"]), **fill},
    ]


def _limits(view: Json, curves: Sequence[Json], name: str, dash: str) -> list[dict[str, Any]]:
    """Return the dashed lines of a bound or of a companion column, with one legend entry."""
    found: list[dict[str, Any]] = []
    for series in curves:
        if _drop_unknown(series["values"][name]["mean"]):
            colour = COLOURS[series["model"] % len(COLOURS)] if len(curves) > 1 else "#1b1e23"
            line = _line(view, series, name)
            line |= {"mode": "lines", "line": {"color": colour, "width": 1.2, "dash": dash}}
            found.append({**line, "name": plain(name), "showlegend": not found})
    return found


def _in_powers(curves: Sequence[Json], column: str, bounds: Sequence[Json]) -> bool:
    values = [v for one in curves for v in _drop_unknown(one["values"][column]["mean"])]
    limits = [
        v
        for bound in bounds
        for one in curves
        for v in _drop_unknown(one["values"][bound["limit"]]["mean"])
    ]
    if min(values) <= 0:
        return False
    return max(values) > WIDE * min(values) or max([*limits, 0]) > 10 * max(values)


def _near(curves: Sequence[Json], column: str) -> dict[str, Any]:
    """Return limits of a linear axis with which a far bound does not flatten the readings."""
    values = [
        v for one in curves for part in one["values"][column].values() for v in _drop_unknown(part)
    ]
    low, high = min(values), max(values)
    room = 0.3 * (high - low or abs(high) or 1.0)
    return {"autorangeoptions": {"clipmin": low - room, "clipmax": high + room}}


def _places(view: Json, series: Json) -> list[float]:
    layers = series["layers"]
    if not view["aligned"]:
        return list(layers)
    if len(layers) == 1:
        return [0.5]
    # The last of a model with attention in some layers alone may have no reading.
    last = max(layers[-1], (view["models"][series["model"]]["layers"] or 0) - 1)
    return [(layer - EMBEDDING) / (last - EMBEDDING) for layer in layers]


def _maps(view: Json, measure: Json, column: str, labels: Sequence[str]) -> dict[str, Figure]:
    """Return a map of a column over layers and heads: one figure for each model."""
    found = {}
    for series in measure["series"]:
        cells = series.get("maps", {}).get(column, {}).get("mean", [])
        if series["kind"] or not _drop_unknown(cells):
            continue
        heads, layers = series["heads"], series["layers"]
        if len(heads) == 1 and len(layers) == 1:
            continue
        grid = [
            [cells[index * len(heads) + head] for index in range(len(layers))]
            for head in range(len(heads))
        ]
        name = f"{measure['name']}-{column}-heads-{labels[series['model']]}"
        drawn = heatmaps.heads(grid, layers, heads, column)
        found[name] = _tell_infinite(drawn, view, [series], column)
    return found


def _matrix_maps(
    view: Json, measure: Json, column: str, labels: Sequence[str]
) -> dict[str, Figure]:
    """Return a map of a column over layers and matrices: one figure for each model.

    None of a single matrix, whose curve shows the same.
    """
    found = {}
    every = [one for one in measure["series"] if len(one["layers"]) > 1]
    for model in sorted({one["model"] for one in every}):
        here = [one for one in every if one["model"] == model]
        finite = [one for one in here if _drop_unknown(one["values"][column]["mean"])]
        # A matrix whose readings are all infinite has a row without colours.
        own = [one for one in here if one in finite or column in one["infinite"]]
        if len(own) < 2 or not finite:
            continue
        layers = sorted({layer for one in own for layer in one["layers"]})
        grid = []
        for one in own:
            means = dict(zip(one["layers"], one["values"][column]["mean"], strict=True))
            grid.append([means.get(layer) for layer in layers])
        kinds = [measure["kinds"][one["kind"]] for one in own]
        drawn = heatmaps.matrices(grid, layers, kinds, column)
        name = f"{measure['name']}-{column}-matrices-{labels[model]}"
        found[name] = _tell_infinite(drawn, view, here, column)
    return found


def _bars(measure: Json) -> dict[str, Figure]:
    """Return the bars of a measure without layers: one figure for each group of its table."""
    found = {}
    for group in measure.get("table", {}).get("groups", ()):
        column = group["bar"]
        at = group["heads"].index(column) - group["axes"] if column else 0
        rows = [(", ".join(row["names"]), row["cells"][at]) for row in group["rows"]]
        kept = [(plain(name), value) for name, value in rows if isinstance(value, float)]
        if column and kept:
            names, values = zip(*kept, strict=True)
            trace = {"type": "bar", "orientation": "h", "x": values, "y": names}
            own = layout(
                xaxis=axis(plain(column.replace("_", " "))),
                yaxis=axis("", autorange="reversed", tickmode="linear", type="category"),
            )
            parts = [measure["name"], column, *slugs([group["title"]] if group["title"] else [])]
            found["-".join(parts)] = Figure(
                data=[trace | {"marker": {"color": COLOURS[0]}}],
                layout=own,
                height=80 + 22 * len(kept),
            )
    return found


def _drop_unknown(values: Sequence[Any]) -> list[float]:
    return [value for value in values if value is not None]
