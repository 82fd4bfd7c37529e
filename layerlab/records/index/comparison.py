"""A comparison in the index: the verdict on each arm, or the best arm and how many are which."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from layerlab.records.index.entry import (
    FINISHED,
    INTERRUPTED,
    Kind,
    Summary,
    Table,
    count_verdicts,
    read_table,
)
from layerlab.records.run_files import COMPARISON

BETTER, WORSE, BASELINE = "better", "worse", "baseline"
# Arms that a headline has a verdict of each for.
MOST = 3
# Arms that a name has at most, but for the last one.
NAMED = 4
# What is said of one arm, and of several.
SAID = {
    BETTER: ("1 is better", "{count} are better"),
    WORSE: ("1 is worse", "{count} are worse"),
    "identical": ("1 is identical", "{count} are identical"),
    "not distinguishable": ("1 is not distinguishable", "{count} are not distinguishable"),
    "diverged": ("1 has diverged", "{count} have diverged"),
    "too few seeds": ("1 has too few seeds", "{count} have too few seeds"),
    "no verdict": ("1 has no verdict", "{count} have no verdict"),
}


class _VerdictRow(Table):
    arm: str
    against: str
    verdict: str
    difference: float | None = None
    diverged: list[Any] = Field(default_factory=list)


class _Run(Table):
    finished: bool = True


class _SizeRuns(Table):
    parameters: float
    runs: int = 0


class _LadderRuns(Table):
    sizes: list[_SizeRuns] = Field(default_factory=list)


class _Comparison(Table):
    name: str
    metric: str
    judged: str | None = None
    higher_is_better: bool = False
    rows: list[_VerdictRow]
    runs: list[_Run] = Field(default_factory=list)
    ladder: _LadderRuns | None = None


def read(folder: Path) -> Summary:
    """Read a comparison; one that lacks runs is not finished."""
    content = read_table(folder / COMPARISON, _Comparison)
    missing = sum(not run.finished for run in content.runs)
    if missing:
        headline = f"{missing} of {len(content.runs)} runs are not finished"
        return Summary(_name(content), INTERRUPTED, headline)
    return Summary(_name(content), FINISHED, _verdict(content))


def _name(content: _Comparison) -> str:
    """Return the name of the recipe with the arms: it may have been run with others, too."""
    arms = [row.arm for row in content.rows]
    more = f" and {len(arms) - NAMED} more" if len(arms) > NAMED + 1 else ""
    named = ", ".join(arms[:NAMED] if more else arms)
    return f"{content.name}: {named}{more}" if arms else content.name


def _verdict(content: _Comparison) -> str:
    judged = [row for row in content.rows if row.verdict != BASELINE]
    unit = content.judged or ("score" if content.higher_is_better else content.metric)
    lost = {row.arm: len(row.diverged) for row in content.rows if row.diverged}
    if len(judged) <= MOST:
        said = [_judge(row, unit, lost) for row in judged] or ["no arm is judged"]
    else:
        counted = count_verdicts((row.verdict for row in judged), SAID)
        said = [*_lead(judged, unit, lost), f"of {len(judged)} arms: {counted}"]
    return "; ".join([*said, *_name_size(content.ladder)])


def _name_size(ladder: _LadderRuns | None) -> list[str]:
    """Return the size that the verdicts of a ladder are of, the largest with runs."""
    sizes = [] if ladder is None else ladder.sizes
    largest = ([size for size in sizes if size.runs] or sizes)[-1:]
    return [f"at {size.parameters:,.0f} parameters, of {len(sizes)} sizes" for size in largest]


def _judge(row: _VerdictRow, unit: str, lost: Mapping[str, int]) -> str:
    """Describe the verdict on one arm, in the words of the comparison.

    Args:
        unit: the metric, or what the logs of another trainer call it.
        lost: runs that diverged, by arm: where there are some, the difference of the others may not
            be what decided.
    """
    if row.verdict in (BETTER, WORSE) and {row.arm, row.against} & lost.keys():
        counts = [f"{lost[name]} of {name}" for name in (row.arm, row.against) if name in lost]
        runs = " and ".join(counts)
        return f"{row.arm} is {row.verdict} than {row.against}; runs that diverged: {runs}"
    if row.verdict in (BETTER, WORSE) and row.difference is not None:
        size = _size(row)
        if unit == "bits_per_byte":
            return f"{row.arm} is {row.verdict} than {row.against} by {size} bits per byte"
        if unit == "nats":
            return f"{row.arm} is {row.verdict} than {row.against} by {size} nats"
        return f"{row.arm} is {row.verdict} than {row.against} by {size} in {unit}"
    if row.verdict == "not distinguishable":
        return f"{row.arm} and {row.against} are not distinguishable"
    if row.verdict == "identical":
        return f"{row.arm} and {row.against} are identical"
    return f"{row.arm}: {row.verdict}"


def _lead(judged: Sequence[_VerdictRow], unit: str, lost: Mapping[str, int]) -> list[str]:
    """Return the sentence on the best arm, if any is better by a difference."""
    better = [
        row
        for row in judged
        if row.verdict == BETTER
        and row.difference is not None
        and not {row.arm, row.against} & lost.keys()
    ]
    if not better:
        return []
    best = max(better, key=lambda row: abs(row.difference or 0))
    size = _size(best)
    if unit == "bits_per_byte":
        return [f"{best.arm} comes out ahead of {best.against} by {size} bits per byte"]
    if unit == "nats":
        return [f"{best.arm} comes out ahead of {best.against} by {size} nats"]
    return [f"{best.arm} comes out ahead of {best.against} by {size} in {unit}"]


def _size(row: _VerdictRow) -> str:
    return f"{abs(row.difference or 0):.4g}"


KIND = Kind("comparison", (COMPARISON,), "report.html", lambda names: COMPARISON in names, read)
