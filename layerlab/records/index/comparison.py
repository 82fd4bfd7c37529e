"""A comparison in the index: the best arm, and how many are decided."""

from pathlib import Path

from pydantic import Field

from layerlab.records.index.entry import FINISHED, INTERRUPTED, Kind, Summary, Table, read_table
from layerlab.records.run_files import COMPARISON

BETTER, BASELINE = "better", "baseline"
DECIDED = (BETTER, "worse")


class _Row(Table):
    arm: str
    against: str
    verdict: str
    difference: float | None = None


class _Run(Table):
    finished: bool = True


class _Comparison(Table):
    name: str
    metric: str
    rows: list[_Row]
    runs: list[_Run] = Field(default_factory=list)


def read(folder: Path) -> Summary:
    """Read a comparison; one that lacks runs is not finished."""
    content = read_table(folder / COMPARISON, _Comparison)
    missing = sum(not run.finished for run in content.runs)
    if missing:
        headline = f"{missing} of {len(content.runs)} runs are not finished"
        return Summary(content.name, INTERRUPTED, headline)
    return Summary(content.name, FINISHED, _verdict(content))


def _verdict(content: _Comparison) -> str:
    judged = [row for row in content.rows if row.verdict != BASELINE]
    decided = sum(row.verdict in DECIDED for row in judged)
    counted = f"{decided} of {len(judged)} arms are decided"
    better = [row for row in judged if row.verdict == BETTER and row.difference is not None]
    if not better:
        return counted
    best = max(better, key=lambda row: abs(row.difference or 0))
    lead = f"{best.arm} comes out ahead of {best.against} by {abs(best.difference or 0):.4g}"
    unit = f" {content.metric}" if content.metric == "nats" else ""
    return f"{lead}{unit}; {counted}"


KIND = Kind("comparison", (COMPARISON,), "report.html", lambda names: COMPARISON in names, read)
