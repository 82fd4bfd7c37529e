"""Gathers what runs left in their folders as plain values, all that a page needs."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from layerlab.errors import UserError
from layerlab.records.events import FILE as EVENTS
from layerlab.records.events import read_lines, renumber
from layerlab.records.json_values import Json
from layerlab.records.parse import find_table, get_table, json_of, read_json
from layerlab.records.renamed_settings import current_manifest, current_settings

RUNS, COMPARISON = "runs", "comparison.json"
# What lies beside comparison.json, and is written after it.
BESIDE = ("report.html", "tables", "pictures")
RECIPE, RUN = "recipe.json", "run.json"
COLUMNS = {
    "train": ("update", "tokens", "flops", "seconds", "loss"),
    "evaluation": (
        *("update", "tokens", "flops", "seconds"),
        *("nats", "bits_per_byte", "accuracy"),
    ),
}
# Kinds of events, and the part of a content that they go to.
_PARTS = {"alarm": "alarms", "note": "notes", "sample": "samples", "monitor": "monitor"}


def gather_run_files(content: Mapping[str, Any], folder: Path) -> Json:
    """Gather the content of a comparison with manifests and events of its runs beside.

    What the content brings itself is kept; a file that cannot be read is passed over.

    Args:
        folder: in which `runs/` lies.
    """
    found: Json = {"manifests": {}, **{part: [] for part in _PARTS.values()}}
    for run in content.get("runs") or ():
        run_folder = folder / RUNS / Path(str(run.get("run", ""))).name
        manifest = _manifest(run_folder)
        if manifest is not None:
            found["manifests"][str(run["run"])] = manifest
        for part, rows in _events(run_folder, run).items():
            found[part] += rows
    return {**found, **{name: part for name, part in content.items() if part is not None}}


def describe_single(folder: Path) -> Json:
    """Describe the content of one run, read from its folder.

    Raises:
        UserError: no run has begun there.
    """
    manifest = _manifest(folder)
    if manifest is None:
        raise UserError(f"no run has begun in {folder}; expected a folder of layerlab train")
    recipe = current_settings(find_table(folder / "recipe.json"))
    result = find_table(folder / "result.json") or None
    trained = get_table(get_table(manifest, "recipe"), "train")
    head: Json = {"run": str(manifest.get("run", folder.name))}
    head |= {"arm": str(manifest.get("arm", ""))}
    head |= {"seed": trained.get("seed"), "rate": trained.get("learning_rate")}
    run = {**(result or {}), **head, "chosen": True, "finished": result is not None}
    events = list(_lines(folder))
    curves = {
        kind: {
            name: [event.get(name) for event in events if event.get("kind") == kind]
            for name in names
        }
        for kind, names in COLUMNS.items()
    }
    return {
        **{key: str(recipe.get(key) or "") for key in ("about", "inferred")},
        "name": str(recipe.get("name") or head["run"]),
        "arms": [head["arm"]],
        "metric": "nats",
        "rows": [],
        "runs": [run],
        "curves": [{**head, "chosen": True, **curves}],
        "recipe": recipe,
        "manifests": {head["run"]: manifest},
        **_events(folder, head),
    }


def _manifest(folder: Path) -> Json | None:
    found = find_table(folder / "manifest.json") or None
    return None if found is None else current_manifest(found)


def _events(folder: Path, run: Mapping[str, Any]) -> dict[str, list[Json]]:
    """Return the alerts, notes, samples and readings of a run, each with the run's name."""
    found: dict[str, list[Json]] = {part: [] for part in _PARTS.values()}
    head = {key: run.get(key) for key in ("run", "arm", "seed")}
    for event in renumber(_lines(folder)):
        part = _PARTS.get(str(event.get("kind")))
        if part == "monitor":
            rows = event.get("readings")
            kept = [one for one in rows if isinstance(one, dict)] if isinstance(rows, list) else []
            found[part] += [{**head, "update": event.get("update"), **one} for one in kept]
        elif part is not None:
            found[part].append({**head, **{k: v for k, v in event.items() if k != "kind"}})
    return found


def _lines(folder: Path) -> Iterator[Json]:
    """Yield the events of a run; a truncated line is skipped."""
    try:
        for line in read_lines(folder / EVENTS):
            with suppress(ValueError):
                event = json_of(line.decode(errors="replace"))
                if isinstance(event, dict):
                    yield event
    except OSError:
        return


def read_table(file: Path) -> Json:
    """Read a table of settings from a run's folder.

    Raises:
        UserError: there is no such file, or it holds no table.
    """
    try:
        found = read_json(file)
        if isinstance(found, dict):
            return found
        reason = "it holds no table"
    except OSError as error:
        reason = error.strerror or str(error)
    except ValueError:
        reason = "it is not JSON"
    raise UserError(
        f"cannot read {file}: {reason}; expected the folder of a run, which layerlab train makes"
    )
