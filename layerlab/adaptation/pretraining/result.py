"""The result of continued pretraining."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from layerlab.adaptation.pretraining.callbacks import SourceShare
from layerlab.adaptation.pretraining.forgetting import Change
from layerlab.adaptation.pretraining.replay import GENERAL


@dataclass(frozen=True, kw_only=True)
class PretrainingResult:
    """The result of continued pretraining.

    Attributes:
        updates: of the weights.
        tokens: that were predicted.
        sources: how much was read of each.
        before: held-out text in bits per byte at the start, by kind; without a kind whose text
            does not come back from its tokens.
        after: the same at the end.
        change: after minus before, with an interval, by kind.
        held: which held-out tokens were read, as a hash, and whether these were all, by kind.
        folder: with events.jsonl, result.json and the model.
        notes: what the reader of a result has to know.
    """

    updates: int
    tokens: int
    sources: tuple[SourceShare, ...]
    before: Mapping[str, float]
    after: Mapping[str, float]
    change: Mapping[str, Change]
    folder: Path
    held: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def forgetting(self) -> Change | None:
        """The change on general text: above 0 is forgotten; None without general text."""
        return self.change.get(GENERAL)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values, without the model's folder."""
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
