"""Reads back a run's folder, finished or not."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ValidationError

from layerlab.errors import UserError
from layerlab.records.events import read, renumber
from layerlab.records.parse import explain, read_json
from layerlab.records.renamed_settings import current_manifest
from layerlab.records.result import STRICT, read_result
from layerlab.records.scores import ModelScore, read_scores

SHARED = "shared_device"  # in a manifest


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A run as recorded in its folder.

    Attributes:
        manifest: all that must be equal between the runs of a comparison.
        events: in the order of updates.
        result: None while the run is not finished.
        scores: of its finished model, by the key of the measure.
        folder: that it stands in; empty for one that stands in none.
    """

    manifest: Mapping[str, Any]
    events: tuple[Mapping[str, Any], ...] = ()
    result: Mapping[str, Any] | None = None
    scores: Mapping[str, ModelScore] = field(default_factory=dict)
    folder: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        """The name of the run and of its folder."""
        return str(self.manifest["run"])

    @property
    def arm(self) -> str:
        """The arm of the comparison that the run belongs to."""
        return str(self.manifest["arm"])

    @property
    def seed(self) -> int:
        """The seed of the weights and of the order of the text."""
        return int(self.manifest["recipe"]["train"]["seed"])

    @property
    def rate(self) -> float:
        """The largest learning rate."""
        return float(self.manifest["recipe"]["train"]["learning_rate"])

    @property
    def shares_device(self) -> bool:
        """Return whether it computed beside other runs on its device; earlier ones do not say."""
        return self.manifest.get(SHARED) is True

    @property
    def finished(self) -> bool:
        """Return whether it has a result; a diverged run has one too."""
        return self.result is not None

    @property
    def diverged(self) -> str | None:
        """Return the reason why the run diverged, if its result has one."""
        reason = (self.result or {}).get("diverged")
        return None if reason is None else str(reason)

    def value(self, name: str) -> float | None:
        """Return a number of the result; None where there is none or it is not finite."""
        found = (self.result or {}).get(name)
        number = isinstance(found, int | float) and math.isfinite(found)
        return float(found) if number and found is not None else None

    @cached_property
    def blocks(self) -> np.ndarray | None:
        """Nats per token of each held-out block; None where the run did not keep them."""
        found = (self.result or {}).get("blocks")
        return None if found is None else np.array(found["nats"], float)

    def halves(self, name: str) -> tuple[float, float] | None:
        """Split a loss into the parts of the even and the odd held-out blocks.

        Where the run did not keep its blocks each half is said to have brought the same.
        """
        total = self.value(name)
        if total is None:
            return None
        if self.blocks is None or not self.blocks.any():
            return total / 2, total / 2
        nats = self.blocks * np.array((self.result or {})["blocks"]["tokens"], float)
        share = float(nats[::2].sum() / nats.sum())
        return total * share, total * (1 - share)

    def count(self, name: str) -> float | None:
        """Count a number of the model's account in the manifest."""
        found = self.manifest.get("model", {}).get(name)
        return float(found) if isinstance(found, int | float) else None


def read_record(folder: Path) -> RunRecord | None:
    """Read the run of a folder; None where it has not begun.

    Raises:
        UserError: there is no such folder, or one of its files is damaged.
    """
    if not folder.is_dir():
        raise UserError(f"no folder of a run at {folder}; expected one that layerlab train wrote")
    manifest = _manifest(folder)
    if manifest is None:
        if (folder / "result.json").exists():
            raise UserError(f"{folder} has a result and no manifest.json; delete it, run it again")
        return None
    if (folder / "events.jsonl").is_dir():
        raise UserError(f"{folder / 'events.jsonl'} is a folder; delete {folder}, run it again")
    result = read_result(folder)
    return RunRecord(
        manifest=manifest,
        events=tuple(renumber(read(folder))),
        result=result,
        scores=read_scores(folder, result),
        folder=str(folder),
    )


def _manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of a run, checked as far as a comparison relies on it.

    None where it has not begun.
    """
    file = folder / "manifest.json"
    try:
        found = read_json(file)
        found = current_manifest(found) if isinstance(found, dict) else found
        _Manifest.model_validate(found)
    except FileNotFoundError:
        return None
    except ValidationError as error:
        why = explain(error)
    except (OSError, ValueError) as error:
        why = " ".join(str(error).split())
    else:
        return dict(found)
    raise UserError(f"cannot read {file}: {why}; delete {folder} and run it again")


class _Train(BaseModel):
    model_config = STRICT
    seed: int
    learning_rate: float


class _Recipe(BaseModel):
    model_config = STRICT
    train: _Train


class _Data(BaseModel):
    model_config = STRICT
    digest: str
    train_tokens: int | None


class _Manifest(BaseModel):
    model_config = STRICT
    run: str
    arm: str
    recipe: _Recipe
    data: _Data
