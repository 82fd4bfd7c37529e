"""Published tables of the source's evaluations, to stand beside ours, labelled so.

No number here was measured by this project. Prompts, numbers of examples and scoring of the source
are only partly known, so a difference to ours need not be one of models.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from layerlab.evaluation.metrics.estimates import Mean
from layerlab.evaluation.results.averages import FINEVAL, LAWBENCH, Average, macro, weighted_mean

LABEL = "published"
KEY = "pangu23"


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """One printed table; its numbers are percent.

    Attributes:
        number: of the table in the source.
        benchmark: whose parts its columns are; empty where each column is a benchmark.
        rule: of its average.
        columns: their printed names.
        parts: what each column is called here: a benchmark, a subject, a category or a level.
        rows: the cells of every model, and the printed average last.
    """

    number: int
    title: str
    benchmark: str = ""
    rule: Literal["macro", "weighted", "lawbench"]
    columns: tuple[str, ...]
    parts: tuple[str, ...]
    rows: Mapping[str, tuple[float, ...]]

    def cells(self, model: str) -> dict[str, float]:
        """Return what was printed for a model, by the names that the columns have here."""
        return dict(zip(self.parts, self.rows[model], strict=False))

    def printed_average(self, model: str) -> float:
        """Return the average as printed."""
        return self.rows[model][-1]

    def recompute_average(self, model: str) -> Average:
        """Return the average that the rule makes of the cells."""
        means = {part: Mean(value, None, 0) for part, value in self.cells(model).items()}
        weights = {"weighted": FINEVAL, "lawbench": LAWBENCH}.get(self.rule)
        if weights is None:
            return macro(means, self.parts)
        return weighted_mean(means, weights, self.parts)


@dataclass(frozen=True, kw_only=True)
class Slip:
    """A printed average that its own cells do not give.

    Attributes:
        kind: whether rounding explains it.
    """

    table: int
    model: str
    printed: float
    recomputed: float
    kind: Literal["rounding", "beyond rounding"]


@cache
def tables() -> Mapping[int, PublishedTable]:
    """Return tables 5, 6, 8, 9 and 10 of the source, by their numbers.

    Source: pangu23, section 5.

    Example:
        >>> tables()[10].printed_average("YunShan")
        31.75
    """
    found = [
        PublishedTable(
            **{**one, "columns": tuple(one["columns"]), "parts": tuple(one["parts"])}
            | {"rows": {model: tuple(cells) for model, cells in one["rows"].items()}}
        )
        for one in _file()["table"]
    ]
    return MappingProxyType({table.number: table for table in found})


def slips() -> tuple[Slip, ...]:
    """Return the averages of the source that do not follow from its cells."""
    return tuple(Slip(**one) for one in _file()["slip"])


def find_tables(benchmark: str) -> tuple[PublishedTable, ...]:
    """Find the tables that print a benchmark: its own one, or those with a column of it.

    Source: pangu23, section 5.

    Example:
        >>> [table.number for table in find_tables("ceval")], find_tables("none")
        ([5, 6], ())
    """
    return tuple(
        table
        for table in tables().values()
        if table.benchmark == benchmark or (not table.benchmark and benchmark in table.parts)
    )


@cache
def _file() -> dict[str, Any]:
    with Path(__file__).with_name("published.toml").open("rb") as stream:
        return tomllib.load(stream)
