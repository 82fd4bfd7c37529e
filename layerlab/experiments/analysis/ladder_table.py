"""The sizes of a ladder for a terminal: gains by size, best rates, and what all of it says."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from layerlab.console.tables import grids, plain
from layerlab.console.units import amount
from layerlab.experiments.analysis.verdict import number

HEADS = ("arm", "parameters", "tokens", "loss", "gain", "interval", "p (Holm)", "rate", "verdict")


def ladder_table(content: Mapping[str, Any], width: int) -> Iterator[RenderableType]:
    """Yield a row for each arm and size, then each arm's sentence over all sizes."""
    ladder = content.get("ladder")
    if not ladder:
        return
    yield plain("By size", "bold")
    yield grids(HEADS, list_cells(content), {"arm", "verdict"}, width)
    yield plain(
        f"gain: the baseline's loss less the arm's, in {ladder['unit']}, above 0 where the arm is "
        "better; p (Holm): corrected for all tests of all sizes",
        "dim",
    )
    yield Text()
    for sentence in list_sentences(ladder):
        yield plain(sentence)
    yield Text()
    last = ([size for size in ladder["sizes"] if size["runs"]] or ladder["sizes"])[-1]
    yield plain(f"What follows is of {amount(last['parameters'])} parameters", "bold")


def list_cells(content: Mapping[str, Any]) -> list[list[str]]:
    """Return the cells under `HEADS` of every arm at every size."""
    return [
        _cells(row, size, str(content["metric"]))
        for name in content["arms"]
        for size in content["ladder"]["sizes"]
        for row in size["rows"]
        if row["arm"] == name
    ]


def list_sentences(ladder: Mapping[str, Any]) -> list[str]:
    """Return what all sizes say of each arm together, and how the best rates drift."""
    drifting = [one for one in ladder["rates"] if one["drift"] is not None]
    return [
        *(arm["said"] for arm in ladder["arms"]),
        *(f"{one['arm']}: the best rate drifts by {_drift(one)}" for one in drifting),
    ]


def _drift(one: Mapping[str, Any]) -> str:
    drift = f"{number(one['drift'], sign=True)} octaves per doubling"
    if one["low"] is None:
        return drift
    return f"{drift} ({number(one['low'], sign=True)} to {number(one['high'], sign=True)})"


def _cells(row: Mapping[str, Any], size: Mapping[str, Any], metric: str) -> list[str]:
    gain, low, high = (
        None if row[name] is None else -row[name] for name in ("difference", "high", "low")
    )
    interval = (
        "-" if low is None or high is None else f"{number(low, True)} to {number(high, True)}"
    )
    return [
        str(row["arm"]),
        amount(size["parameters"]),
        amount(size["tokens"]),
        "-" if row[metric] is None else f"{row[metric]:.4f}",
        "-" if gain is None or row["verdict"] == "baseline" else number(gain, sign=True),
        interval,
        "-" if row["holm"] is None else f"{row['holm']:.2g}",
        "-" if row["rate"] is None else f"{row['rate']:g}",
        str(row["verdict"]),
    ]
