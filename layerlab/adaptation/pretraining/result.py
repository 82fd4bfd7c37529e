"""A course of continued pretraining: what is asked for, and what came of it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from layerlab.adaptation.pretraining.callbacks import Share
from layerlab.adaptation.pretraining.forgetting import Change
from layerlab.adaptation.pretraining.replay import GENERAL
from layerlab.adaptation.trainer.arguments import step_counts
from layerlab.errors import UserError
from layerlab.validation import short_repr


@dataclass(frozen=True, kw_only=True)
class Course:
    """How long, in what steps, and how closely watched.

    Attributes:
        tokens: to train on, rounded to whole updates.
        batch: blocks of an update, over all processes.
        seed: decides the order of the blocks, and dropout.
        every: updates between two readings of held-out text; a tenth of the run where left out.
        held: blocks of held-out text of each kind that are read, at equal distances; None reads
            all of it.
        resample: share of the batches that is trained on, drawn by their loss under the model as
            it is handed in, whole in every process (resampling.py); None trains on each of them.
    """

    tokens: int
    batch: int = 16
    seed: int = 0
    every: int | None = None
    held: int | None = 512
    resample: int | float | None = None

    def __post_init__(self) -> None:
        for name in ("tokens", "batch", "every", "held"):
            if (value := getattr(self, name)) is not None and not value >= 1:
                raise UserError(f"{name} is {short_repr(value)}; expected at least 1")
        if self.resample is not None and not 0 < self.resample <= 1:
            raise UserError(
                f"resample is {short_repr(self.resample)}; expected a share of the batches, above "
                "0 and at most 1"
            )

    def updates(self, block: int) -> int:
        """Return the number of updates of the weights, with blocks of so many tokens."""
        return max(1, round(self.tokens / (self.batch * block)))

    def arguments(self, block: int) -> dict[str, Any]:
        """Return the arguments that Trainer gets from it where the caller gives no others."""
        return {**step_counts(self.updates(block)), "per_device_train_batch_size": self.batch}


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """What came of it.

    Attributes:
        updates: of the weights.
        tokens: that were predicted.
        sources: how much was read of each.
        before: held-out text in bits per byte at the start, by kind.
        after: the same at the end.
        change: after minus before, with an interval, by kind.
        folder: with events.jsonl, result.json and the model.
        notes: what the reader of a result has to know.
    """

    updates: int
    tokens: int
    sources: tuple[Share, ...]
    before: Mapping[str, float]
    after: Mapping[str, float]
    change: Mapping[str, Change]
    folder: Path
    notes: tuple[str, ...] = ()

    @property
    def forgetting(self) -> Change | None:
        """Of general text: above 0 is forgotten. None where no general text was given."""
        return self.change.get(GENERAL)

    def to_json(self) -> dict[str, Any]:
        """Return everything but where the model lies."""
        content = asdict(replace(self, folder=Path())) | {"forgetting": None}
        del content["folder"]
        if self.forgetting is not None:
            content["forgetting"] = asdict(self.forgetting)
        return content

    def summary(self) -> str:
        """Return the lines that a terminal shows."""
        lines = [f"{self.updates:,} updates, {self.tokens:,} tokens"]
        for one in self.sources:
            again = "; seen more than once" if one.passes > 1 else ""
            lines.append(
                f"{one.kind}: {one.source}: {one.tokens:,} tokens, {one.passes:.2f} passes{again}"
            )
        for kind, found in self.change.items():
            name = "general (forgetting)" if kind == GENERAL else kind
            bits = f"{self.before[kind]:.4f} -> {self.after[kind]:.4f} bits per byte"
            lines.append(f"{name}: {bits}, {found}")
        return "\n".join([*lines, *self.notes])
