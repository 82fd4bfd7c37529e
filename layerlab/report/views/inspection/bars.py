"""A measure without layers as the page shows it: one table, the first of its columns as bars."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from layerlab.records.json_values import Json, json_values
from layerlab.report.i18n.language import label
from layerlab.report.views import text
from layerlab.report.views.inspection.bounds import finite, is_text, numbers

DIGITS = 4
# More rows than this are shown in groups that unfold.
MOST = 24
# And of more than this, all groups but the first are folded.
OPEN = 80
LONGEST = 120  # characters of a name or a text in a cell
# Of next tokens, of which a sequence has one less.
NEXT = ("loss_change",)
# Of one token: of several texts the largest is the worst.
WORST = ("worst", "kl_worst")
TOKENS = "_tokens"  # of the sequence of a row


def view(
    report: Mapping[str, Any], measure: Mapping[str, Any], rows: pd.DataFrame, missing: list[Json]
) -> Json:
    """Return the rows of a measure as cells, several texts as one (`merge_texts`).

    A mean is infinite where one sequence is, and none where one sequence has no reading: the others
    do not stand for it. What only a plotted measure has is empty.

    Rows stand in the order of the readings.
    """
    axes = [axis for axis in ("model", *measure["per"]) if axis != "sequence" and axis in rows]
    single = len(report["models"]) == 1
    visible = [axis for axis in axes if not (axis == "model" and single)]
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
        "table": _table(with_tokens(report, rows), axes, visible, columns, measure),
    }


def count_tokens(card: Mapping[str, Any], sequences: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    """Return the number of tokens of each sequence, as the model of a card reads it."""
    if own := card.get("tokens"):
        return {index: int(count) for index, count in enumerate(own)}
    return {int(one["index"]): int(one["tokens"]) for one in sequences}


def merge_texts(
    rows: pd.DataFrame,
    keys: Sequence[str],
    columns: Sequence[str],
    *,
    whole: bool = False,
    **options: Any,
) -> pd.DataFrame:
    """Return columns of several texts as of one: means over all tokens, of a worst the largest.

    A longer text has more tokens. Infinities of both signs have no mean.

    Args:
        rows: with the tokens of the text of each in `TOKENS`; where they are not known all texts
            are taken as alike.
        keys: by which rows are grouped.
        whole: a text without a reading leaves none; else the others stand for it.
        options: of the grouping, as pandas takes them.
    """

    def group(part: Any) -> Any:
        return part.groupby([rows[key] for key in keys], **options)

    values = rows[list(columns)].astype(float)
    # The last token has no next one.
    counts = pd.DataFrame({name: rows[TOKENS].fillna(2) - (name in NEXT) for name in columns})
    counts = counts.where(counts > 0)
    weights = counts.where(values.notna())
    with np.errstate(invalid="ignore"):
        sums, total = (group(part).sum(min_count=1) for part in (values * weights, weights))
        found: pd.DataFrame = sums / total
    for name in set(WORST) & set(columns):
        found[name] = group(values[name].where(weights[name].notna())).max()
    return found.mask(group(values.isna() & counts.notna()).any()) if whole else found


def with_tokens(report: Mapping[str, Any], rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with the tokens of the text that each is of, if it is of one, in `TOKENS`."""
    if "sequence" not in rows:
        return rows.assign(**{TOKENS: np.nan})
    texts = report["text"]["sequences"]
    counts = {model["name"]: count_tokens(model, texts) for model in report["models"]}
    places = zip(rows["model"], rows["sequence"], strict=True)
    return rows.assign(**{TOKENS: [counts[model].get(index, np.nan) for model, index in places]})


def _table(
    rows: pd.DataFrame,
    axes: list[str],
    visible: list[str],
    columns: list[str],
    measure: Mapping[str, Any],
) -> Json:
    """Return all rows in one table, or in one for each group where there are many."""
    if rows.empty or not columns:
        return {"groups": []}
    numeric = [name for name in columns if not is_text(rows[name])]
    numeric_rows = rows.assign(**{name: numbers(rows[name]) for name in numeric}).reset_index(
        drop=True
    )
    options: dict[str, Any] = {"sort": False, "dropna": False}
    table = numeric_rows.groupby(axes, **options)[columns].first()
    if numeric:
        table[numeric] = merge_texts(numeric_rows, axes, numeric, whole=True, **options).to_numpy()
    table = table.reset_index()
    group = visible[:-1] if len(table) > MOST else []
    left = [axis for axis in visible if axis not in group]
    parts = table.groupby(group, sort=False) if group else [((), table)]
    drawn = [name for name in measure["plot"] or [""] if name in numeric]
    spans = {name: _find_span(table[name]) for name in drawn}
    roles, typed = measure.get("roles", {}), set(measure.get("typed", ()))
    groups: list[Json] = []
    for key, part in parts:
        full = [one for one in columns if not group or _is_known(part[one])]
        notes = [one for one in full if roles.get(one) == "note"]
        heads = [one for one in full if one not in notes]
        bar = next((one for one in drawn if one in heads), "")
        cells = [partial(_tell_flag if roles.get(one) == "flag" else _tell, one) for one in heads]
        groups.append(
            {
                "title": text.prose(", ".join(map(_row_name, group, key)), 120),
                "open": len(table) <= OPEN or not groups,
                "heads": [*left, *heads],
                "axes": len(left),
                "words": [one for one in heads if one not in numeric or roles.get(one) == "flag"],
                "bar": bar,
                "rows": [
                    {
                        "names": [_tell_name(row, axis, axes, typed) for axis in left],
                        "note": ", ".join(str(row[one]) for one in notes if row[one]),
                        "cells": [tell(row) for tell in cells],
                        **_place_bar(row.get(bar), spans.get(bar, (0.0, 0.0))),
                    }
                    for row in part.to_dict("records")
                ],
            }
        )
    return {"groups": groups}


def _is_known(column: pd.Series) -> bool:
    """Return whether a column has a value other than an empty text."""
    return bool((column.notna() & (column != "")).any())


def _row_name(axis: str, value: Any) -> str:
    return f"by {value}" if axis == "by" else str(value)


def _tell_name(row: Mapping[Any, Any], axis: str, axes: Sequence[str], typed: set[str]) -> str:
    """Return what a row is called; names that a user types stand between backticks."""
    name = str(row[axis])
    if axis == axes[-1] and typed & {str(row[one]) for one in axes}:
        name = ", ".join(f"`{one}`" if one.isidentifier() else one for one in name.split(", "))
    return text.prose(name, LONGEST)


def _tell(name: str, row: Mapping[Any, Any]) -> float | str | None:
    value = row[name]
    return text.prose(value, LONGEST) if isinstance(value, str) else _number(value)


def _tell_flag(name: str, row: Mapping[Any, Any]) -> str:
    return "" if pd.isna(row[name]) else label("yes") if row[name] else label("no")


def _find_span(values: pd.Series) -> tuple[float, float]:
    """Return where the bars of a column begin and end; 0 lies between."""
    readings = finite(values)
    return min(0.0, float(readings.min())), max(0.0, float(readings.max()))


def _place_bar(value: Any, span: tuple[float, float]) -> Json:
    """Return where a bar begins and how long it is, in percent of the widest span."""
    low, high = span
    if value is None or pd.isna(value) or high <= low:
        return {"start": 0.0, "bar": 0.0}
    # One that is infinite is as long as there is room.
    start, end = sorted((0.0, min(high, max(low, float(value)))))
    scale = 100 / (high - low)
    return {"start": round(scale * (start - low), 1), "bar": round(scale * (end - start), 1)}


def _number(value: float) -> float | str | None:
    """Return a number with few digits; infinities in words, as in report.json."""
    short: float | str | None = json_values(float(f"{value:.{DIGITS}g}"))
    return short
