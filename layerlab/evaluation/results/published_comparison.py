"""The source's printed tables with our rows among them; every row says which it is."""

from collections.abc import Sequence
from typing import Any

from layerlab.evaluation.results.published import KEY, LABEL, PublishedTable, find_tables, tables
from layerlab.records.json_values import Record

OURS, AVERAGE = "measured here", "average"


def published_rows(
    arms: Sequence[str],
    benchmarks: Sequence[Record],
    subjects: Sequence[Record],
    sections: Sequence[Record],
) -> list[dict[str, Any]]:
    """Return the rows of every printed table with a benchmark of ours, in percent.

    Args:
        arms: our models.
        benchmarks: their official averages.
        subjects: their scores by subject.
        sections: their scores by category or level.
    """
    asked = dict.fromkeys(str(row["benchmark"]) for row in benchmarks)
    numbers = {table.number for name in asked for table in find_tables(name)}
    found: list[dict[str, Any]] = []
    for number in sorted(numbers):
        table = tables()[number]
        for arm in arms:
            own = _own(table, arm, benchmarks, subjects, sections)
            if any(value is not None for value in own.values()):
                found.append(_row(table, arm, OURS, own))
        for model in table.rows:
            cells = {part: table.cells(model).get(part) for part in table.parts}
            printed = {**cells, AVERAGE: table.printed_average(model)}
            found.append(_row(table, model, LABEL, printed))
    return found


def tell_limit(limit: int | None) -> list[str]:
    """Say of how few questions the rows beside published ones are.

    Example:
        >>> tell_limit(None)
        []
    """
    if limit is None:
        return []
    return [f"measured here are the first {limit:,} of each subject's questions, published are all"]


def _row(table: PublishedTable, model: str, origin: str, cells: Record) -> dict[str, Any]:
    names = dict(zip(table.parts, table.columns, strict=False))
    return {
        "table": table.number,
        "title": table.title,
        "source": KEY,
        "model": model,
        "from": origin,
        "cells": {names.get(part, part): value for part, value in cells.items()},
    }


def _own(
    table: PublishedTable,
    arm: str,
    benchmarks: Sequence[Record],
    subjects: Sequence[Record],
    sections: Sequence[Record],
) -> dict[str, float | None]:
    """Return our cells in the columns of a table, with an average only where no column is empty."""
    own = {
        str(row["benchmark"]): _sound(row)
        for row in benchmarks
        if row["arm"] == arm and not row.get("without")
    }
    if not table.benchmark:
        cells = {part: _percent(own.get(part)) for part in table.parts}
        values = [value for value in cells.values() if value is not None]
        full = len(values) == len(cells)
        return {**cells, AVERAGE: sum(values) / len(values) if full else None}
    inside = [
        row
        for row in (*subjects, *sections)
        if (row["arm"], row["benchmark"]) == (arm, table.benchmark)
    ]
    scores = {str(row.get("subject", row.get("section"))): _sound(row) for row in inside}
    cells = {part: _percent(scores.get(part)) for part in table.parts}
    return {**cells, AVERAGE: _percent(own.get(table.benchmark))}


def _sound(row: Record) -> float | None:
    """Return a score; None where no logit that it is of was a finite number."""
    return None if row.get("lost") else row["score"]


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value
