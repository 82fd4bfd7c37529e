"""Runs followed in TensorBoard, Weights & Biases, MLflow or Trackio, by accelerate's trackers."""

import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from layerlab.errors import UserError, describe_install
from layerlab.records.kept import warn_of_damage
from layerlab.records.layer_names import layer_name
from layerlab.records.parse import read_json
from layerlab.records.settings import flatten
from layerlab.system.files import read_whole, write_file
from layerlab.system.write_errors import FULL, reason_of

# The module of each, and how it is installed.
INSTALLED = {
    "tensorboard": ("tensorboard", describe_install("track")),
    "trackio": ("trackio", describe_install("track")),
    "wandb": ("wandb", "type: pip install wandb"),
    "mlflow": ("mlflow", "type: pip install mlflow"),
}
FOLDER = "track"
# MLflow keeps numbers alone.
WORDLESS = {"mlflow"}
_BESIDE = {"kind", "update"}


def check(names: Sequence[str]) -> None:
    """Raise before a run starts what would otherwise stop it.

    Raises:
        UserError: a tracker is unknown, or not installed.
    """
    for name in names:
        if name not in INSTALLED:
            raise UserError(
                f"run.report_to names {name!r}, which is no tracker; expected "
                f'{", ".join(INSTALLED)}: write report_to = ["tensorboard"]'
            )
        module, command = INSTALLED[name]
        if find_spec(module) is None:
            raise UserError(
                f"run.report_to names {name!r}, which is not installed; {command}, "
                "or leave it out of run.report_to"
            )


class Trackers:
    """All trackers of one run; for the first process alone.

    What was told before an interruption is not told again: the steps that a resumed run repeats
    are passed over, and runs go on under the name that they began with.
    """

    def __init__(self, started: Mapping[str, Any], folder: Path) -> None:
        self.started = dict(started)
        self._folder, self._full = folder, False
        self._last_steps = _last(folder / "told")
        self._stream = (folder / "told").open("a", encoding="utf-8") if started else None

    def take(self, event: Mapping[str, Any]) -> None:
        """Pass on an event of a run's journal; a full disk ends this, and not the run."""
        if self._stream is None or self._full:
            return
        kind, step = event["kind"], event["update"]
        if step <= self._last_steps.get(kind, -1):
            return
        numbers, texts = values(event)
        with self._unless_full():
            for name, tracker in self.started.items():
                facts = numbers if name in WORDLESS else {**numbers, **texts}
                if facts:
                    tracker.log(facts, step=step)
            self._stream.write(f"{kind} {step}\n")
            self._stream.flush()

    def finish(self) -> None:
        """Close them all."""
        for tracker in self.started.values():
            with self._unless_full():
                tracker.finish()
        if self._stream is not None:
            with self._unless_full():
                self._stream.close()

    @contextmanager
    def _unless_full(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in FULL:
                raise
            if not self._full:
                warn_of_damage(
                    f"{self._folder} cannot be written ({reason_of(error)}): trackers hear no more "
                    "of this run until it is resumed; its journal has everything"
                )
            self._full = True

    def __enter__(self) -> "Trackers":
        return self

    def __exit__(self, *raised: object) -> None:
        self.finish()


def trackers(names: Sequence[str], folder: Path, config: Mapping[str, Any]) -> Trackers:
    """Start the trackers of a run, or go on with them where it is resumed.

    TensorBoard, MLflow and W&B write beneath the run's folder, unless their own variables of the
    environment say otherwise (MLFLOW_TRACKING_URI, WANDB_DIR, WANDB_MODE=offline).

    Args:
        folder: of the run, which is named after it.
        config: the recipe, as nested plain values.

    Raises:
        UserError: a tracker is unknown, or not installed.
    """
    check(names)
    track_folder = folder / FOLDER
    if names:
        from accelerate.state import PartialState

        PartialState()  # accelerate's trackers ask it which process this is
        track_folder.mkdir(parents=True, exist_ok=True)
    keys = _keys(track_folder, names)
    started = {}
    for name in names:
        tracker = _tracker(name, folder, keys[name]["key"])
        tracker.start()
        if not keys[name]["begun"]:
            tracker.store_init_configuration(dict(_settings(config)))
            keys[name]["begun"] = True
            write_file(track_folder / "keys.json", json.dumps(keys) + "\n")
        started[name] = tracker
    return Trackers(started, track_folder)


def values(event: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, str]]:
    """Return numbers and texts of an event, under names that a tracker groups by.

    Example:
        >>> values({"kind": "train", "update": 3, "loss": 5.0, "rate": 0.001})
        ({'train/loss': 5.0, 'train/rate': 0.001}, {})
    """
    kind = event["kind"]
    if kind == "monitor":
        return {_spot(row): float(row["value"]) for row in event["readings"]}, {}
    if kind == "sample":
        return {}, {f"sample/{event['prompt'][:60]}": event["text"]}
    content = {key: value for key, value in event.items() if key not in _BESIDE}
    numbers = {
        f"{kind}/{key}": float(value)
        for key, value in content.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    texts = {f"{kind}/{key}": value for key, value in content.items() if isinstance(value, str)}
    return numbers, texts


def _spot(row: Mapping[str, Any]) -> str:
    head = "" if row.get("head") is None else f"/head {row['head']}"
    layer = "" if row.get("layer") is None else f"/{layer_name(row['layer'])}"
    return f"monitor/{row['measure']}{layer}{head}"


def _tracker(name: str, folder: Path, key: str) -> Any:
    """Return a tracker of accelerate that goes on with what has this key."""
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    kind = LOGGER_TYPE_TO_CLASS[name]
    track_folder, project = folder / FOLDER, _project(folder)
    if name == "tensorboard":
        return kind("tensorboard", str(track_folder))
    if name == "wandb":
        where = {} if "WANDB_DIR" in os.environ else {"dir": str(track_folder)}
        return kind(project, name=folder.name, id=key, resume="allow", **where)
    if name == "trackio":
        return kind(project, name=folder.name, resume="allow")
    return _mlflow(kind, project, folder, key)


def _mlflow(kind: Any, project: str, folder: Path, key: str) -> Any:
    """Return a run of MLflow gives itself its key, which is found again by a tag."""
    import mlflow

    if "MLFLOW_TRACKING_URI" not in os.environ:
        mlflow.set_tracking_uri(f"sqlite:///{folder / FOLDER / 'mlflow.db'}")
    mlflow.set_experiment(project)
    found = mlflow.search_runs(
        filter_string=f"tags.layerlab = '{key}'", output_format="list", max_results=1
    )
    if found:
        return kind(project, run_id=found[0].info.run_id)
    return kind(project, run_name=folder.name, tags={"layerlab": key})


def _project(folder: Path) -> str:
    """Return the recipe's name: runs lie in RECIPE/runs/RUN."""
    above = folder.resolve().parents
    return above[1].name if above[0].name == "runs" else "layerlab"


def _keys(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """Return a key of one's own for each tracker, the same after a resume."""
    try:
        keys = read_json(folder / "keys.json")
    except (OSError, ValueError):
        keys = {}
    keys = keys if isinstance(keys, dict) else {}
    kinds = {"key": str, "begun": bool}
    keys = {
        name: one
        for name, one in keys.items()
        if isinstance(one, dict) and {key: type(one.get(key)) for key in kinds} == kinds
    }
    for name in names:
        keys.setdefault(name, {"key": uuid.uuid4().hex[:12], "begun": False})
    if names:
        write_file(folder / "keys.json", json.dumps(keys) + "\n")
    return dict(keys)


def _last(file: Path) -> dict[str, int]:
    """Return the last step that was told, of each kind of event."""
    found: dict[str, int] = {}
    if file.exists():
        for line in read_whole(file).decode(errors="replace").splitlines():
            kind, _, step = line.partition(" ")
            if step.isdecimal():
                found[kind] = max(found.get(kind, -1), int(step))
    return found


def _settings(content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield settings by their paths, as what every tracker takes."""
    for name, value in flatten(content):
        if isinstance(value, bool | int | float | str):
            yield name, value
        elif value is not None and value != {}:
            yield name, json.dumps(value, default=str)
