"""A report of an inspection in the index: its findings by severity."""

from pathlib import Path

from layerlab.records.index.entry import FINISHED, Kind, Summary, Table, read_table

DATA = "report.json"
# Beside a report.json of `layerlab adapt clean`, which is another.
CLEANED = "text.jsonl"


class _Finding(Table):
    severity: str


class _Model(Table):
    source: str
    name: str | None = None


class _Report(Table):
    models: list[_Model]
    findings: list[_Finding]


def matches(names: frozenset[str]) -> bool:
    """Tell the folder of a report by its data."""
    return DATA in names and CLEANED not in names


def read(folder: Path) -> Summary:
    """Read a report."""
    content = read_table(folder / DATA, _Report)
    models = ", ".join(one.name or one.source for one in content.models)
    ranks = [one.severity for one in content.findings]
    return Summary(models, FINISHED, _count_findings(ranks))


def _count_findings(ranks: list[str]) -> str:
    errors, warnings, remarks = (ranks.count(rank) for rank in ("error", "warning", "info"))
    parts = [
        f"{errors} error" if errors == 1 else f"{errors} errors",
        f"{warnings} warning" if warnings == 1 else f"{warnings} warnings",
        f"{remarks} remark" if remarks == 1 else f"{remarks} remarks",
    ]
    counted = zip(parts, (errors, warnings, remarks), strict=True)
    return ", ".join(part for part, count in counted if count) or "no findings"


KIND = Kind("report", (DATA,), "report.html", matches, read)
