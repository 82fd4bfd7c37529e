"""Result of one training run."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from layerlab.errors import UserError
from layerlab.records.events import read, renumber
from layerlab.training.checkpoints.result import MODEL
from layerlab.validation import short_repr

KINDS = ("train", "evaluation", "sample", "note", "monitor", "alarm")


@dataclass(frozen=True)
class TrainingResult:
    """A finished run: its folder and its result.

    Attributes:
        folder: with recipe, manifest, events and the model.
        result: loss, speed, memory: the content of result.json.
        page: of the report.
        notes: what has to be known of the text.
    """

    folder: Path
    result: Mapping[str, Any]
    page: Path
    notes: Sequence[str] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `result.json`."""
        return deepcopy(dict(self.result))

    def model(self) -> Any:
        """Return the trained model, as transformers loads it.

        Raises:
            UserError: the recipe kept none, or its weights are not those that were saved.
        """
        from layerlab.loading.weights.saved import load_saved

        if not (self.folder / MODEL).is_dir():
            raise UserError(
                f"{self.folder} kept no model; write run.save_model = true, delete it and train "
                "again"
            )
        return load_saved(self.folder / MODEL)

    def summary(self) -> str:
        """Return the summary that a terminal shows."""
        found = self.result
        kept = self.folder / MODEL
        model = f"The model: {kept}\n" if kept.is_dir() else ""
        notes = "".join(f"{note}\n" for note in self.notes)
        bits = found["bits_per_byte"]
        by_bytes = "" if bits is None else f"{bits:.4f} bits per byte, "
        speed = found["tokens_per_second"]
        by_time = "" if speed is None else f" at {speed:,.0f} a second"
        return (
            f"{found['run']}: {found['nats']:.4f} nats per token, "
            f"{by_bytes}{found['tokens']:,} tokens{by_time}\n"
            f"{notes}{model}".rstrip()
        )

    def frame(self, kind: str = "train") -> pd.DataFrame:
        """Return the events of one kind, one row each.

        Raises:
            UserError: there is no such kind.
        """
        if kind not in KINDS:
            raise UserError(
                f"a run has no events of the kind {short_repr(kind)}; expected one of "
                f'{", ".join(KINDS)}: type frame("train")'
            )
        return pd.DataFrame([one for one in renumber(read(self.folder)) if one["kind"] == kind])
