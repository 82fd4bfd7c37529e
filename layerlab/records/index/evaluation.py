"""An evaluation in the index: averages of the groups and scores of tasks, or how many there are."""

from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from layerlab.records.index.activity import state_of_unfinished
from layerlab.records.index.entry import FINISHED, Kind, Summary, Table, read_table
from layerlab.records.index.task_metrics import is_share

RESULTS, LEAVES, SAMPLES = "results.json", "leaves", "samples"
# Averages and tasks that a headline has at most.
MOST = 4


class _Arm(Table):
    arm: str


class _Row(Table):
    arm: str
    score: float | None = None
    complete: bool = True
    parts: int = 0
    whole: int = 0
    low: float | None = None
    high: float | None = None
    lost: bool = False
    share: bool | None = None


class _Group(_Row):
    group: str


class _Benchmark(_Row):
    title: str | None = None
    benchmark: str


class _TaskGroup(_Group):
    metric: str


class _Metric(Table):
    metric: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    share: bool | None = None


class _Task(Table):
    arm: str
    task: str
    measured: list[_Metric]
    groups: list[str] = Field(default_factory=list)
    lost: bool = False


class _Results(Table):
    arms: list[_Arm]
    benchmarks: list[_Benchmark]
    groups: list[_Group] = Field(default_factory=list)
    tasks: list[_Task] = Field(default_factory=list)
    task_groups: list[_TaskGroup] = Field(default_factory=list)


def matches(names: frozenset[str]) -> bool:
    """Tell the folder of an evaluation by its results, or by the answers before there are any."""
    return RESULTS in names or {LEAVES, SAMPLES} <= names


def read(folder: Path) -> Summary:
    """Read an evaluation, finished or not."""
    if not (folder / RESULTS).exists():
        tasks = sum(1 for _ in (folder / LEAVES).glob("*.json"))
        state = state_of_unfinished(folder, [folder / LEAVES])
        return Summary(
            folder.name,
            state,
            "1 task is answered" if tasks == 1 else f"{tasks} tasks are answered",
        )
    content = read_table(folder / RESULTS, _Results)
    names = [one.arm for one in content.arms]
    parts = [
        f"{arm}, {scored}" if len(names) > 1 else scored
        for arm, scored in (*_averages(content), *_tasks(content))
    ]
    more = f"and {len(parts) - MOST} more"
    visible = parts[:MOST] + ([more] if len(parts) > MOST else [])
    return Summary(", ".join(names), FINISHED, "; ".join(visible) or "nothing was scored")


def _averages(content: _Results) -> Iterator[tuple[str, str]]:
    """Yield each average with its model: of the groups, or else of the benchmarks."""
    rows: list[tuple[str, _Row]] = [(one.group, one) for one in content.groups]
    rows = rows or [(one.title or one.benchmark, one) for one in content.benchmarks]
    for title, row in rows:
        yield row.arm, f"{title}: {_score(row)}"


def _tasks(content: _Results) -> Iterator[tuple[str, str]]:
    """Yield the scores of tasks of lm-eval with their model: of groups, and of tasks in none."""
    for one in content.task_groups:
        yield one.arm, f"{one.group}: {one.metric} {_score(one)}"
    averaged = {(one.arm, one.group) for one in content.task_groups}
    for task in content.tasks:
        if not averaged & {(task.arm, group) for group in task.groups}:
            scores = ", ".join(f"{one.metric} {_value(one, task.lost)}" for one in task.measured)
            yield task.arm, f"{task.task}: {scores}"


def _value(row: _Metric, lost: bool) -> str:
    if lost:
        return "not finite"
    if row.value is None:
        return "without a score"
    return f"{row.value:.1%}" if is_share(vars(row)) else f"{row.value:.4g}"


def _score(row: _Row) -> str:
    if row.lost:
        return "not finite"
    if not row.complete:
        return f"incomplete ({row.parts} of {row.whole})"
    if row.score is None:
        return "without a score"
    share = row.low is None or is_share(vars(row))
    return f"{row.score:.1%}" if share else f"{row.score:.4g}"


KIND = Kind("evaluation", (RESULTS, LEAVES), "report.html", matches, read)
