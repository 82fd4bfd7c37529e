"""An adaptation in the index: what the domain's text costs before and after, or its stages."""

from pathlib import Path

from pydantic import Field

from layerlab.records.events import FILE as EVENTS
from layerlab.records.index.activity import state_of_unfinished
from layerlab.records.index.entry import FINISHED, INTERRUPTED, Kind, Summary, Table, read_table
from layerlab.records.result import FILE, MANIFEST

STAGES, STAGE = "stages", "stage.json"
# Beside a result.json of a single training of `layerlab.adaptation`, which is another.
PLAN = "plan.json"
DOMAIN, BEFORE = "domain", "before"


class _Stage(Table):
    finished: bool


class _Change(Table):
    arm: str
    kind: str
    against: str
    before: float | None = None
    after: float | None = None


class _Result(Table):
    name: str
    stages: list[_Stage]
    changes: list[_Change] = Field(default_factory=list)


def matches(names: frozenset[str]) -> bool:
    """Tell the folder of an adaptation by its stages, or by a result that is of no run."""
    return STAGES in names or (FILE in names and not names & {MANIFEST, EVENTS, PLAN})


def read(folder: Path) -> Summary:
    """Read an adaptation, finished or not."""
    if not (folder / FILE).exists():
        done = sum(1 for _ in (folder / STAGES).glob(f"*/{STAGE}"))
        state = state_of_unfinished(folder, [folder / STAGES])
        headline = "1 stage is finished" if done == 1 else f"{done} stages are finished"
        return Summary(folder.name, state, headline)
    content = read_table(folder / FILE, _Result)
    done = sum(one.finished for one in content.stages)
    counted = f"{done} of {len(content.stages)} stages are finished"
    state = FINISHED if done == len(content.stages) else INTERRUPTED
    return Summary(content.name, state, "; ".join([*_changes(content), counted]))


def _changes(content: _Result) -> list[str]:
    rows = [one for one in content.changes if one.kind == DOMAIN and one.against == BEFORE]
    return [
        f"{one.arm} brings domain text from {one.before:.4g} to {one.after:.4g} bits per byte"
        for one in rows[:1]
        if one.before is not None and one.after is not None
    ]


KIND = Kind("adaptation", (FILE, STAGES), "report.html", matches, read)
