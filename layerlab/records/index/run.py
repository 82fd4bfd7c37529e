"""A run in the index: its loss, or how far it has come."""

import math
from pathlib import Path

from pydantic import Field

from layerlab.records.events import FILE as EVENTS
from layerlab.records.heartbeat import last_update
from layerlab.records.index.activity import state_of_unfinished
from layerlab.records.index.entry import DIVERGED, FINISHED, Kind, Summary, Table
from layerlab.records.parse import read_json
from layerlab.records.renamed_settings import current_manifest
from layerlab.records.result import FILE, MANIFEST, read_result
from layerlab.records.run_files import RECIPE, RUN


class _PlannedTrain(Table):
    max_steps: int | None = None


class _PlannedRecipe(Table):
    train: _PlannedTrain = Field(default_factory=_PlannedTrain)


class _PlannedManifest(Table):
    run: str
    recipe: _PlannedRecipe


def matches(names: frozenset[str]) -> bool:
    """Tell a folder of a run by its files; a manifest alone may be of anything."""
    return EVENTS in names or (MANIFEST in names and bool({FILE, RUN, RECIPE} & names))


def read(folder: Path) -> Summary:
    """Read a run, finished or not."""
    result = read_result(folder)
    if result is None:
        return _read_unfinished(folder)
    if result["diverged"] is not None:
        return Summary(result["run"], DIVERGED, result["diverged"])
    nats, bits = result["nats"], result["bits_per_byte"]
    headline = f"{nats:.4f} nats per token"
    if bits is not None:
        headline = f"{nats:.4f} nats per token, {bits:.4f} bits per byte"
    return Summary(result["run"], FINISHED, headline)


def _read_unfinished(folder: Path) -> Summary:
    content = read_json(folder / MANIFEST)
    if not isinstance(content, dict):
        raise ValueError("it is no table")
    manifest = _PlannedManifest.model_validate(current_manifest(content))
    state = state_of_unfinished(folder, [folder / EVENTS])
    return Summary(manifest.run, state, _progress(folder, manifest.recipe.train.max_steps))


def _progress(folder: Path, steps: int | None) -> str:
    event = last_update(folder / EVENTS) or {}
    update, loss = event.get("update"), event.get("loss")
    if not isinstance(update, int):
        return "no update yet"
    reached = f"update {update:,} of {steps:,}" if steps else f"update {update:,}"
    finite = isinstance(loss, float) and math.isfinite(loss)  # a whole number may have no float
    return f"{reached}, loss {loss:.4g}" if finite else reached


KIND = Kind("run", (FILE, EVENTS, MANIFEST), "report.html", matches, read)
