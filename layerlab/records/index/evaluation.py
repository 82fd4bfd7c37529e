"""An evaluation in the index: averages of the groups, or how much of them is there."""

from pathlib import Path

from pydantic import Field

from layerlab.records.index.activity import state_of_unfinished
from layerlab.records.index.entry import FINISHED, Kind, Summary, Table, read_table

RESULTS, LEAVES, SAMPLES = "results.json", "leaves", "samples"
# Averages that a headline has at most.
MOST = 4


class _Arm(Table):
    arm: str


class _Row(Table):
    arm: str
    score: float | None = None
    complete: bool = True
    parts: int = 0
    whole: int = 0


class _Group(_Row):
    group: str


class _Benchmark(_Row):
    title: str | None = None
    benchmark: str


class _Results(Table):
    arms: list[_Arm]
    benchmarks: list[_Benchmark]
    groups: list[_Group] = Field(default_factory=list)


def matches(names: frozenset[str]) -> bool:
    """Tell the folder of an evaluation by its results, or by the answers before there are any."""
    return RESULTS in names or {LEAVES, SAMPLES} <= names


def read(folder: Path) -> Summary:
    """Read an evaluation, finished or not."""
    if not (folder / RESULTS).exists():
        tasks = sum(1 for _ in (folder / LEAVES).glob("*.json"))
        state = state_of_unfinished(folder, [folder / LEAVES])
        return Summary(folder.name, state, f"{tasks} tasks are answered")
    content = read_table(folder / RESULTS, _Results)
    names = [one.arm for one in content.arms]
    rows: list[tuple[str, _Row]] = [(one.group, one) for one in content.groups]
    rows = rows or [(one.title or one.benchmark, one) for one in content.benchmarks]
    several = len(names) > 1
    parts = [
        f"{row.arm}, {title}: {_score(row)}" if several else f"{title}: {_score(row)}"
        for title, row in rows
    ]
    more = f"and {len(parts) - MOST} more"
    shown = parts[:MOST] + ([more] if len(parts) > MOST else [])
    return Summary(", ".join(names), FINISHED, "; ".join(shown) or "nothing was scored")


def _score(row: _Row) -> str:
    if not row.complete:
        return f"incomplete ({row.parts} of {row.whole})"
    return "without a score" if row.score is None else f"{row.score:.1%}"


KIND = Kind("evaluation", (RESULTS, LEAVES), "report.html", matches, read)
