"""Pictures of studies as plotly's plain JSON: lines, bands, histograms, planes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from layerlab.studies.engine.statistics import HIGH, LOW, Interval
from layerlab.studies.engine.study import Picture

# Okabe and Ito's colours, which readers with any colour vision tell apart; as on a report's page.
COLOURS = ("#0072b2", "#d55e00", "#00805d", "#b8588f", "#c98600", "#3a9fd6", "#55595f")
# What plotly measures a place by that is given as a share of an axis.
DOMAIN = " domain"
FONT = "ui-sans-serif, system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
Abscissas = Sequence[float | int]
Heights = Sequence[float | int | None]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One line, with a band around it if there is one.

    Attributes:
        kind: which colour it has: curves of one kind share it.
        style: solid, dash, dot or dashdot.
    """

    name: str
    x: Abscissas
    y: Heights
    kind: int = 0
    style: str = "solid"
    low: Heights | None = None
    high: Heights | None = None


@dataclass(frozen=True, kw_only=True)
class Gap:
    """One difference with its interval, if it has one."""

    name: str
    middle: float
    low: float | None = None
    high: float | None = None


def gap(name: str, found: Interval) -> Gap:
    """Return a number with its interval for a picture."""
    return Gap(name=name, middle=found.value, low=found.low, high=found.high)


def band(
    name: str, x: Abscissas, rows: Iterable[Any], *, kind: int = 0, style: str = "solid"
) -> Curve:
    """Return a line with a band around it.

    Args:
        rows: arrays of the low end, the line and the high end.
    """
    low, middle, high = (np.asarray(row).tolist() for row in rows)
    return Curve(name=name, x=x, y=middle, low=low, high=high, kind=kind, style=style)


def mean_band(name: str, x: Abscissas, draws: np.ndarray, kind: int) -> Curve:
    """Return the mean over the draws, the first axis, with the band of 95 % of them."""
    low, high = np.percentile(draws, [LOW, HIGH], axis=0)
    return band(name, x, (low, draws.mean(0), high), kind=kind)


def interval_band(
    name: str, x: Abscissas, found: Iterable[Interval], *, kind: int = 0, style: str = "solid"
) -> Curve:
    """Return a line through numbers, with a band of their intervals."""
    rows = zip(*((one.low, one.value, one.high) for one in found), strict=True)
    return band(name, x, rows, kind=kind, style=style)


def gaps(name: str, title: str, drawn: Sequence[Gap], *, x: str) -> Picture:
    """Draw differences one below the other, each with its interval, and a line at zero."""
    data = {
        "type": "scatter",
        "mode": "markers",
        "marker": {"size": 9, "color": COLOURS[0]},
        "error_x": _error(drawn, COLOURS[0]),
        "x": [one.middle for one in drawn],
        "y": [one.name for one in drawn],
        "showlegend": False,
    }
    axes = {
        "xaxis": {**_axis(x, False), "zeroline": True, "zerolinecolor": COLOURS[-1]},
        "yaxis": {"autorange": "reversed", "automargin": True, "type": "category"},
        "hovermode": "closest",
        "height": max(220, 110 + 26 * len(drawn)),
    }
    return Picture(name=name, title=title, data=[data], layout=_layout(axes))


def curves(
    name: str, title: str, drawn: Sequence[Curve], *, x: str, y: str, log: str = "y"
) -> Picture:
    """Draw lines over one quantity.

    `log` names the axes that are logarithmic: "y", "xy" or "".
    """
    data: list[dict[str, Any]] = []
    for curve in drawn:
        data += _traces(curve)
    axes = {
        "xaxis": _axis(x, "x" in log, [n for curve in drawn for n in curve.x]),
        "yaxis": _axis(y, "y" in log),
    }
    return Picture(name=name, title=title, data=data, layout=_layout(axes))


def histogram(
    name: str,
    title: str,
    bars: Mapping[str, tuple[Abscissas, Sequence[int]]],
    marks: Mapping[str, float],
    x: str,
) -> Picture:
    """Draw histograms over a logarithmic axis, each with a vertical line at its mark."""
    data: list[dict[str, Any]] = []
    shapes = []
    for index, (label, (middles, counts)) in enumerate(bars.items()):
        colour = COLOURS[index % len(COLOURS)]
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "line": {"shape": "hvh", "color": colour, "width": 1.6},
                "fill": "tozeroy",
                "fillcolor": fade(colour),
                "name": label,
                "x": list(middles),
                "y": list(counts),
            }
        )
        if label in marks:
            shapes.append(
                {
                    "type": "line",
                    "x0": marks[label],
                    "x1": marks[label],
                    "y0": 0,
                    "y1": 1,
                    "yref": "paper",
                    "line": {"color": colour, "width": 1.6, "dash": "dash"},
                }
            )
    axes = {"xaxis": _axis(x, True), "yaxis": _axis("draws", False), "shapes": shapes}
    return Picture(name=name, title=title, data=data, layout=_layout(axes))


def plane(
    name: str, title: str, outlines: Sequence[Curve], points: Sequence[Curve], *, x: str, y: str
) -> Picture:
    """Draw outlines and clouds of points in a plane, with one unit for both axes."""
    data = [trace for outline in outlines for trace in _traces(outline)]
    for cloud in points:
        colour = COLOURS[cloud.kind % len(COLOURS)]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": cloud.name,
                "marker": {"size": 5, "color": fade(colour, 0.6)},
                "x": list(cloud.x),
                "y": list(cloud.y),
            }
        )
    axes = {
        "xaxis": {**_axis(x, False), "zeroline": True},
        "yaxis": {**_axis(y, False), "zeroline": True, "scaleanchor": "x", "scaleratio": 1},
        "hovermode": "closest",
        "height": 520,
    }
    return Picture(name=name, title=title, data=data, layout=_layout(axes))


def style(number: int) -> str:
    """Return the dash of a line, where there are more lines than colours."""
    return ("solid", "dash", "dot", "dashdot")[number // len(COLOURS) % 4]


def crosses(
    name: str,
    title: str,
    drawn: Mapping[str, Sequence[tuple[Gap, Gap]]],
    *,
    x: str,
    y: str,
) -> Picture:
    """Draw pairs of differences as points with both intervals, and lines at zero.

    Each point is named by the first of its pair.
    """
    data = []
    for kind, (label, points) in enumerate(drawn.items()):
        colour = COLOURS[kind % len(COLOURS)]
        across, up = [one for one, _ in points], [other for _, other in points]
        data.append(
            {
                "type": "scatter",
                "mode": "markers+text",
                "name": label,
                "text": [one.name for one in across],
                "textposition": [
                    ("top right", "bottom left")[index % 2] for index in range(len(up))
                ],
                "marker": {"size": 8, "color": colour},
                "x": [one.middle for one in across],
                "y": [one.middle for one in up],
                "error_x": _error(across, fade(colour, 0.5)),
                "error_y": _error(up, fade(colour, 0.5)),
            }
        )
    zero = {"zeroline": True, "zerolinecolor": COLOURS[-1]}
    axes = {
        "xaxis": {**_axis(x, False), **zero},
        "yaxis": {**_axis(y, False), **zero},
        "hovermode": "closest",
        "height": 520,
    }
    return Picture(name=name, title=title, data=data, layout=_layout(axes))


def fade(colour: str, alpha: float = 0.16) -> str:
    """Return a translucent version of a colour."""
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"


def _error(drawn: Sequence[Gap], colour: str) -> dict[str, Any]:
    """Return intervals as plotly's error bars; what has none has bars of no length."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [(one.middle if one.high is None else one.high) - one.middle for one in drawn],
        "arrayminus": [one.middle - (one.middle if one.low is None else one.low) for one in drawn],
        "color": colour,
    }


def _traces(curve: Curve) -> list[dict[str, Any]]:
    colour = COLOURS[curve.kind % len(COLOURS)]
    found: list[dict[str, Any]] = []
    if curve.low is not None and curve.high is not None:
        edge = {"type": "scatter", "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
        shared = {**edge, "x": list(curve.x), "showlegend": False, "legendgroup": curve.name}
        found += [
            {**shared, "y": list(curve.low)},
            {**shared, "y": list(curve.high), "fill": "tonexty", "fillcolor": fade(colour)},
        ]
    few = len(curve.x) <= 12
    return [
        *found,
        {
            "type": "scatter",
            "mode": "lines+markers" if few else "lines",
            "name": curve.name,
            "legendgroup": curve.name,
            "line": {"color": colour, "dash": curve.style, "width": 2},
            "marker": {"size": 6},
            "x": list(curve.x),
            "y": list(curve.y),
        },
    ]


def _axis(title: str, log: bool, values: Abscissas = ()) -> dict[str, Any]:
    axis: dict[str, Any] = {"title": {"text": title}, "gridcolor": "rgba(128,128,128,0.25)"}
    if not log:
        return {**axis, "zeroline": False}
    axis |= {"type": "log", "exponentformat": "power", "dtick": 1}
    distinct = sorted(set(values))
    if 0 < len(distinct) <= 12:  # the values that were tried, rather than powers of ten
        axis |= {"tickvals": distinct, "ticktext": [f"{value:g}" for value in distinct]}
        del axis["dtick"]
    return axis


def _layout(axes: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "height": 420,
        "margin": {"l": 76, "r": 16, "t": 16, "b": 56},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 14, "color": "#55595f"},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "hovermode": "x unified",
        **axes,
    }


def heat(name: str, title: str, panels: Sequence[Mapping[str, Any]], **axes: str) -> Picture:
    """Draw matrices side by side, the first row at the top; light means little."""
    wide = len(panels) > 1
    font = {"size": 8 if wide else 12}
    layout = dict(curves(name, title, [], x=axes["x"], y=axes["y"], log="").layout)
    layout |= {"hovermode": "closest", "showlegend": False, "height": 640 if wide else 420}
    data, annotations = [], []
    for number, panel in enumerate(panels):
        key = "" if number == 0 else str(number + 1)
        across, down = number % 2, number // 2
        data.append(
            {
                "type": "heatmap",
                "colorscale": [[0, "#ffffff"], [1, COLOURS[0]]],
                "showscale": number == 0,
                "xaxis": f"x{key}",
                "yaxis": f"y{key}",
                **panel,
            }
        )
        layout[f"xaxis{key}"] = {
            "title": {"text": axes["x"]},
            "domain": [0.55 * across, 0.55 * across + 0.45] if wide else [0, 1],
            "anchor": f"y{key}",
            "type": "category",
            "tickangle": 90,
            "tickfont": font,
        }
        layout[f"yaxis{key}"] = {
            "title": {"text": axes["y"]},
            "domain": [0.58 - 0.58 * down, 1 - 0.58 * down] if wide else [0, 1],
            "anchor": f"x{key}",
            "type": "category",
            "autorange": "reversed",
            "tickfont": font,
        }
        if "name" in panel:
            place = {"x": 0.5, "y": 1, "xref": f"x{key}{DOMAIN}", "yref": f"y{key}{DOMAIN}"}
            anchors = {"xanchor": "center", "yanchor": "bottom", "showarrow": False}
            annotations.append({"text": panel["name"], **place, **anchors})
    layout |= {"margin": {**layout["margin"], "t": 36}, "annotations": annotations}
    return Picture(name=name, title=title, data=data, layout=layout)
