"""The numbers behind the page: frames of readings, reduced to what is drawn.

A page draws means per layer with their range, maps of layer x head, and bounds. Readings of several
sequences are therefore merged here, and numbers keep `DIGITS` significant digits: a report of 36
layers x 20 heads stays far below a megabyte. Everything returned can be written as JSON.
"""

import base64
import json
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np
import pandas as pd

from layerlab.records.json_values import Json
from layerlab.report.views import text
from layerlab.report.views.inspection import bars, density, feature_cloud, saliency
from layerlab.report.views.inspection.bounds import (
    count_infinite,
    finite,
    is_text,
    numbers,
    violations,
)

DIGITS = 4
# With the library that draws a page has 1.5 MB, of which its pictures take so much at most.
DETAIL_BYTES = 250_000
PICTURE_BYTES = 450_000
# A reading whose column `residual` is above this has not converged: it is a lower bound.
UNCONVERGED = 0.1
NAME = 60  # characters of a model's name
_AXES = ("model", "sequence", "layer", "head", "position", "token")


def compact(report: Mapping[str, Any]) -> Json:
    """Return what the page draws of a whole report."""
    steps = _steps(report["models"])
    full_names = [str(model["name"]) for model in report["models"]]
    models = [
        {"name": name, "step": step, "layers": model["layers"]}
        for name, step, model in zip(
            text.tell_apart(full_names, NAME), steps, report["models"], strict=True
        )
    ]
    opened = details(report["findings"], report["details"], full_names)
    kinds = len(report.get("pictures") or ()) or 1
    room = (PICTURE_BYTES - len(json.dumps(opened))) // kinds
    return {
        "models": models,
        "aligned": len({m["layers"] for m in models}) > 1,
        "measures": [measure_view(report, measure, room) for measure in report["measures"]],
        "details": opened,
    }


def _steps(models: Sequence[Mapping[str, Any]]) -> list[int | None]:
    """Return the steps of the checkpoints of one run; those of several are no one line."""
    steps = [model.get("step") for model in models]
    known = [model for model, step in zip(models, steps, strict=True) if step is not None]
    runs = {PurePath(str(model.get("source"))).parent for model in known}
    return steps if len(runs) < 2 else [None] * len(steps)


def frame(report: Mapping[str, Any], name: str) -> pd.DataFrame:
    """Return the readings of one measure as a table; empty where the measure has none."""
    stored = report["frames"].get(name)
    if stored is None:
        return pd.DataFrame(columns=["model", "layer"])
    return pd.DataFrame({column: stored["data"][column] for column in stored["columns"]})


def measure_view(
    report: Mapping[str, Any], measure: Mapping[str, Any], room: int = PICTURE_BYTES
) -> Json:
    """Describe how one measure is drawn, with one series per model and category.

    Args:
        room: for its pictures, in bytes.
    """
    rows = frame(report, measure["name"])
    if "layer" not in measure["per"]:
        return bars.view(report, measure, rows, missing(report, measure))
    rows = bars.with_tokens(report, rows)
    category = next((axis for axis in measure["per"] if axis not in _AXES), None)
    kinds = [] if category is None else list(dict.fromkeys(rows.get(category, [])))
    columns = numeric(rows, measure["columns"])
    read = [name for name in columns if finite(rows[name]).notna().any()]
    bounds = [b for b in measure["bounds"] if b["column"] in columns and b["limit"] in read]
    roles = measure.get("roles", {})
    quantities = [c for c in columns if c not in roles]
    indices = [c for c in columns if roles.get(c) == "index"]
    plot = [c for c in measure["plot"] if c in quantities]
    series = []
    for index, model in enumerate(report["models"]):
        for kind, name in enumerate(kinds or [None]):
            chosen = rows[rows["model"] == model["name"]]
            if name is not None:
                chosen = chosen[chosen[category] == name]
            if len(chosen):
                view = _series(chosen, columns, bounds, model.get("dtype"), indices)
                _add_band(view["values"], measure.get("band"))
                series.append({"model": index, "kind": kind, **view})
    return {
        "name": measure["name"],
        "title": text.prose(measure["title"]),
        "better": measure["better"],
        "columns": columns,
        "indices": indices,
        "plot": plot or quantities,
        "more": [c for c in quantities if plot and c not in plot],
        "category": category,
        "kinds": text.tell_apart(map(str, kinds), 40),
        "first": first_kind(series, (plot or quantities)[:1]),
        "per_head": "head" in measure["per"],
        "per_token": "position" in measure["per"],
        "bounds": [dict(bound) for bound in bounds],
        "thresholds": thresholds(report, measure["name"], kinds),
        "band": measure.get("band"),
        "missing": missing(report, measure),
        "series": series,
        "pictures": [
            *saliency.pictures(report, measure["name"], rows, room),
            *feature_cloud.pictures(report, measure["name"], room),
            *density.pictures(report, measure["name"]),
        ],
    }


def thresholds(report: Mapping[str, Any], name: str, kinds: Sequence[Any]) -> list[Json]:
    """Return the levels of this measure's quantities that findings hold readings against."""
    index = {model["name"]: i for i, model in enumerate(report["models"])}
    return [
        {
            "model": index[finding["model"]],
            "column": finding["column"],
            "kind": curve_kind(finding, kinds),
            "value": _number(float(finding["threshold"])),
        }
        for finding in report["findings"]
        if finding["measure"] == name
        and finding.get("column")
        and not finding.get("relative")
        and finding.get("threshold") is not None
        and finding["model"] in index
    ]


def curve_kind(finding: Mapping[str, Any], kinds: Sequence[Any]) -> int:
    """Return which of a measure's kinds a finding is about; the first where it names none."""
    named = [str(kind) for kind in kinds]
    return named.index(kind) if (kind := str(finding.get("kind"))) in named else 0


def first_kind(series: Iterable[Mapping[str, Any]], quantities: Sequence[str]) -> int:
    """Return the kind that is drawn first: one that has readings of several layers, if any has.

    An embedding, which lies in one layer, would be a single point.

    Example:
        >>> one = {"kind": 0, "values": {"norm": {"mean": [2.0]}}}
        >>> several = {"kind": 1, "values": {"norm": {"mean": [1.0, 3.0]}}}
        >>> first_kind([one, several], ["norm"]), first_kind([one], ["norm"])
        (1, 0)
    """
    for one in series:
        means = [one["values"][name]["mean"] for name in quantities]
        if any(sum(value is not None for value in mean) > 1 for mean in means):
            return int(one["kind"])
    return 0


def _add_band(values: Json, band: Mapping[str, Any] | None) -> None:
    """Give a column the range between the two columns that the measure names as its band."""
    if band is not None and {band["low"], band["high"]} <= set(values):
        values[band["column"]]["low"] = values[band["low"]]["mean"]
        values[band["column"]]["high"] = values[band["high"]]["mean"]


def numeric(rows: pd.DataFrame, names: Iterable[str]) -> list[str]:
    """Return the columns that can be drawn.

    A column without a single reading counts; text does not.
    """
    return [n for n in names if n in rows and not is_text(rows[n])]


def missing(report: Mapping[str, Any], measure: Mapping[str, Any]) -> list[Json]:
    """Return the models that have no reading of this measure, each with its reason."""
    index = {model["name"]: i for i, model in enumerate(report["models"])}
    return [
        {"model": index.get(entry["model"]), "reason": text.prose(str(entry["reason"]))}
        for entry in measure["not_applicable"]
    ]


def reach(rows: pd.DataFrame, bound: Mapping[str, Any]) -> pd.Series:
    """Return each reading as a share of its bound: 0 is vacuous, 1 attained, above 1 violated."""
    value, limit = finite(rows[bound["column"]]), finite(rows[bound["limit"]])
    ratio = value / limit if bound["side"] == "upper" else limit / value
    return finite(ratio)


def most_frequent(values: pd.Series) -> float:
    """Return the value that occurs more often than any other; NaN where there is none.

    Example:
        >>> most_frequent(pd.Series([3, 0, 3])), most_frequent(pd.Series([3, 0]))
        (3.0, nan)
    """
    modes = values.mode()
    return float(modes.iloc[0]) if len(modes) == 1 else math.nan


def convergence(residual: pd.Series) -> Json:
    """Count the readings, and those that had not converged when they were taken."""
    readings = finite(residual).dropna()
    return {
        "readings": len(readings),
        "open": int((readings > UNCONVERGED).sum()),
        "limit": UNCONVERGED,
    }


def details(
    findings: Sequence[Mapping[str, Any]],
    stored: Mapping[str, Mapping[str, Any]],
    names: Sequence[str],
    budget: int = DETAIL_BYTES,
) -> Json:
    """Return what the findings open, in their order, as long as there is room on the page.

    Args:
        names: of the models, one of which each is of, by its number.
    """
    kept: Json = {}
    for key in dict.fromkeys(f.get("detail") for f in findings):
        if key is None or key not in stored or str(stored[key]["model"]) not in names:
            continue
        view = {**_detail(stored[key]), "model": names.index(str(stored[key]["model"]))}
        cost = sum(len(str(value)) for value in view.values())
        if cost <= budget:
            kept[key] = view
            budget -= cost
    return kept


def _series(
    rows: pd.DataFrame,
    columns: Sequence[str],
    bounds: Iterable[Mapping[str, Any]],
    dtype: str | None,
    indices: Sequence[str],
) -> Json:
    table = rows.assign(**{c: finite(rows[c]) for c in columns})
    layers = sorted(int(n) for n in table["layer"].unique())
    view: Json = {
        "layers": layers,
        "sequences": int(table["sequence"].nunique()) if "sequence" in table else 0,
        "values": _summaries(table, ["layer"], columns, indices),
        "bounds": [_verdict(table, bound, dtype) for bound in bounds],
    }
    view["infinite"] = {
        c: {
            **counted,
            "layers": sorted(int(n) for n in rows["layer"][np.isinf(numbers(rows[c]))].unique()),
        }
        for c in columns
        if (counted := count_infinite(rows[c]))
    }
    if "residual" in columns:
        view["convergence"] = convergence(table["residual"])
    if "head" in table:
        heads = sorted(int(n) for n in table["head"].dropna().unique())  # none: a whole sublayer
        full = pd.MultiIndex.from_product([layers, heads], names=["layer", "head"])
        view["heads"] = heads
        view["maps"] = _summaries(table, ["layer", "head"], columns, indices, full)
    return view


def _summaries(
    table: pd.DataFrame,
    keys: list[str],
    columns: Sequence[str],
    indices: Sequence[str] = (),
    index: pd.Index | None = None,
) -> Json:
    """Return each column of all texts (`bars.merge_texts`), and its smallest and largest, per key.

    The range only where there is one. Of indices no mean says anything: the most frequent stands
    for them, without a range.
    """
    if not columns:
        return {}
    groups = table.groupby(keys, sort=True)
    grouped = groups[list(columns)]
    means = bars.merge_texts(table, keys, columns)
    for name in indices:
        means[name] = groups[name].agg(most_frequent)
    parts = {"mean": means, "low": grouped.min(), "high": grouped.max()}
    if index is not None:
        parts = {name: part.reindex(index) for name, part in parts.items()}
    varies = (parts["high"] > parts["low"]).any()
    return {
        column: {
            name: [_number(float(value)) for value in part[column]]
            for name, part in parts.items()
            if name == "mean" or (varies[column] and column not in indices)
        }
        for column in columns
    }


def _verdict(table: pd.DataFrame, bound: Mapping[str, Any], dtype: str | None) -> Json:
    if bound["side"] == "beside":
        return {"readings": 0, "violated": 0, "layers": [], "reach": None, "least": None}
    broken, used, layer = violations(table, bound, dtype), reach(table, bound), table["layer"]
    return {
        "readings": int(used.notna().sum()),
        "violated": int(broken.sum()),
        "layers": sorted(int(n) for n in layer[broken].unique()),
        "reach": _number(float(used.max())) if used.notna().any() else None,
        "least": _number(float(used.min())) if used.notna().any() else None,
    }


def _detail(stored: Mapping[str, Any]) -> Json:
    view = {k: stored.get(k) for k in ("kind", "layer", "head", "sequence")}
    if stored["kind"] == "channels":
        view["channels"] = [
            {**c, "token": text.token(str(c["token"])), "value": _number(float(c["value"]))}
            for c in stored["channels"]
        ]
        return view
    tokens, queries, rows = stored["tokens"], stored["queries"], stored["weights"]
    view["tokens"] = [text.token(str(t)) for t in tokens]
    # Of a long sequence only some positions are shown, as queries and as keys alike.
    part = len(queries) == len(tokens)
    view["positions"] = [int(q) for q in queries] if part else list(range(len(tokens)))
    view["own"] = [len(row) - 1 for row in rows]
    view["map"] = _pack(rows, len(tokens))
    return view


def _pack(rows: Sequence[Sequence[int]], width: int) -> str:
    """Pack rows of bytes, padded with zeros to a rectangle, deflated, in base64."""
    table = np.zeros((len(rows), width), dtype=np.uint8)
    for index, row in enumerate(rows):
        table[index, : len(row)] = np.clip(row[:width], 0, 255)
    return base64.b64encode(zlib.compress(table.tobytes(), 9)).decode("ascii")


def _number(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 10**DIGITS else short
