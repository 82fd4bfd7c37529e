"""A measure without layers as the page shows it: one table, the first of its columns as bars."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from layerlab.records.json_values import Json
from layerlab.report.views import text
from layerlab.report.views.bounds import finite

DIGITS = 4
# More rows than this are shown in groups that unfold.
MOST = 24


def view(
    report: Mapping[str, Any], measure: Mapping[str, Any], rows: pd.DataFrame, missing: list[Json]
) -> Json:
    """Return the rows of a measure as cells, means over sequences.

    What only a plotted measure has is empty.

    Rows stand in the order of the readings.
    """
    axes = [axis for axis in ("model", *measure["per"]) if axis != "sequence" and axis in rows]
    single = len(report["models"]) == 1
    shown = [axis for axis in axes if not (axis == "model" and single)]
    columns = [name for name in measure["columns"] if name in rows and len(rows)]
    return {
        "name": measure["name"],
        "title": text.prose(measure["title"]),
        "better": measure["better"],
        "columns": [],
        "plot": [],
        "more": [],
        "category": None,
        "kinds": [],
        "per_head": False,
        "bounds": [],
        "band": None,
        "missing": missing,
        "series": [],
        "table": _table(rows, axes, shown, columns, (measure["plot"] or [""])[0]),
    }


def _table(
    rows: pd.DataFrame, axes: list[str], shown: list[str], columns: list[str], bar: str
) -> Json:
    """Return all rows in one table, or in one for each group where there are many."""
    if rows.empty or not columns:
        return {"heads": [], "axes": 0, "bar": "", "groups": []}
    numbers = rows.assign(**{name: finite(rows[name]) for name in columns})
    table = numbers.groupby(axes, sort=False, dropna=False)[columns].mean().reset_index()
    most = float(table[bar].max()) if bar in table else 0.0
    group = shown[:-1] if len(table) > MOST else []
    left = [axis for axis in shown if axis not in group]
    parts = table.groupby(group, sort=False) if group else [((), table)]
    return {
        "heads": [*left, *columns],
        "axes": len(left),
        "bar": bar,
        "groups": [
            {
                "title": text.prose(", ".join(map(_row_name, group, key)), 120),
                "rows": [_row(row, left, columns, bar, most) for row in part.to_dict("records")],
            }
            for key, part in parts
        ],
    }


def _row_name(axis: str, value: Any) -> str:
    return f"by {value}" if axis == "by" else str(value)


def _row(row: dict[Any, Any], left: list[str], columns: list[str], bar: str, most: float) -> Json:
    return {
        "names": [text.prose(str(row[axis]), 60) for axis in left],
        "numbers": [_number(row[name]) for name in columns],
        "bar": _share(row.get(bar), most),
    }


def _share(value: Any, most: float) -> float:
    """Return the length of a bar in percent."""
    known = value is not None and pd.notna(value) and most > 0
    return round(100 * max(0.0, float(value) / most), 1) if known else 0.0


def _number(value: float) -> float | None:
    return None if pd.isna(value) else float(f"{value:.{DIGITS}g}")
