"""Matrices side by side as one picture of a study."""

from collections.abc import Mapping, Sequence
from typing import Any

from layerlab.studies.picture import COLOURS, curves
from layerlab.studies.study import Picture

# What plotly measures a place by that is given as a share of an axis.
DOMAIN = " domain"


def heat(name: str, title: str, panels: Sequence[Mapping[str, Any]], **axes: str) -> Picture:
    """Matrices side by side, the first row at the top; light is little."""
    layout = dict(curves(name, title, [], x=axes["x"], y=axes["y"], log="").layout)
    layout |= {
        "hovermode": "closest",
        "showlegend": False,
        "height": 420 if len(panels) == 1 else 640,
    }
    data = []
    for number, panel in enumerate(panels):
        key = "" if number == 0 else str(number + 1)
        across, down = number % 2, number // 2
        wide = len(panels) > 1
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
            "tickfont": {"size": 8 if wide else 12},
        }
        layout[f"yaxis{key}"] = {
            "title": {"text": axes["y"]},
            "domain": [0.58 - 0.58 * down, 1 - 0.58 * down] if wide else [0, 1],
            "anchor": f"x{key}",
            "type": "category",
            "autorange": "reversed",
            "tickfont": {"size": 8 if wide else 12},
        }
    layout["margin"] = {**layout["margin"], "t": 36}
    layout["annotations"] = [
        {
            "text": panel["name"],
            "x": 0.5,
            "y": 1,
            "xref": f"x{key}" + DOMAIN,
            "yref": f"y{key}" + DOMAIN,
            "xanchor": "center",
            "yanchor": "bottom",
            "showarrow": False,
        }
        for number, panel in enumerate(panels)
        if "name" in panel
        for key in ["" if number == 0 else str(number + 1)]
    ]
    return Picture(name=name, title=title, data=data, layout=layout)
