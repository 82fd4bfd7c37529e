"""Curves of continued pretraining: domain and general text in bits per byte."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from layerlab.adaptation.pretraining.forgetting import (
    BitsPerByteEvaluator,
    Change,
    UnitLosses,
    change,
)
from layerlab.adaptation.pretraining.replay import DOMAIN, GENERAL, BlockDataset
from layerlab.console.units import difference
from layerlab.corpus.corpus import ProgressCallback
from layerlab.records.events import EventLog

NOTHING = {"events": 0}  # the mark of a journal that is not open yet


@dataclass(frozen=True, kw_only=True)
class ProcessGroup:
    """This process among those of a run, and how their results are summed.

    Attributes:
        part: its number, and how many there are.
        reduce: adds up what the processes found.
        precision: of a forward pass.
    """

    part: tuple[int, int] = (0, 1)
    reduce: Callable[[Tensor], Tensor] = lambda sums: sums
    precision: Callable[[], AbstractContextManager[Any]] = nullcontext

    @property
    def first(self) -> bool:
        """Return whether this process writes the files."""
        return self.part[0] == 0

    def cost(self, gauge: BitsPerByteEvaluator, model: Any, batch: int) -> UnitLosses:
        """Return the loss of a model on held-out text, read by all processes."""
        return gauge.read(
            model, batch=batch, part=self.part, reduce=self.reduce, precision=self.precision
        )


@dataclass(frozen=True, kw_only=True)
class SourceShare:
    """The amount of one source that has been read.

    Attributes:
        source: the text that was really read.
        kind: domain or general.
        blocks: that were predicted.
        tokens: the same in tokens.
        passes: over its training text; above 1 the model has seen text twice.
    """

    source: str
    kind: str
    blocks: int
    tokens: int
    passes: float


def shares(blocks: BlockDataset, kinds: tuple[str, ...], rows: int) -> list[SourceShare]:
    """Return how much has been read of each source after so many rows."""
    order = blocks.order
    return [
        SourceShare(
            source=stream.name,
            kind=kind,
            blocks=read,
            tokens=read * order.block,
            passes=read / total,
        )
        for stream, kind, read, total in zip(
            order.corpus.train, kinds, blocks.read(rows), order.blocks, strict=True
        )
    ]


@dataclass(frozen=True, kw_only=True)
class CurveSettings:
    """The texts and intervals of the curves.

    Attributes:
        gauges: held-out text by kind; none where it does not come back from its tokens.
        blocks: what is trained on.
        kinds: of its sources.
        batch: blocks of an update.
        every: updates between two readings.
        micro: blocks of a forward pass when held-out text is read.
    """

    gauges: dict[str, BitsPerByteEvaluator]
    blocks: BlockDataset
    kinds: tuple[str, ...]
    batch: int
    every: int
    micro: int


class Curves(TrainerCallback, ExportableState):
    """Writes losses, bits per byte, forgetting and tokens by source to the journal.

    A checkpoint remembers the events there were and what held-out text cost at the start, so that a
    resumed run writes the file that an uninterrupted one would have written.

    Attributes:
        start: what held-out text cost before the first update, by kind.
        now: the same at the last reading.
    """

    def __init__(
        self,
        watched: CurveSettings,
        folder: Path,
        group: ProcessGroup,
        progress: ProgressCallback | None = None,
    ) -> None:
        self.watched, self.folder, self.group = watched, folder, group
        self.progress = progress if group.first else None
        self.start: dict[str, UnitLosses] = {}
        self.now: dict[str, UnitLosses] = {}
        self._journal: EventLog | None = None
        self._loss: float | None = None

    def state(self) -> dict[str, Any]:
        """Return the state that a checkpoint keeps."""
        if self._journal is not None:
            self._journal.settle()
        kept = {kind: cost.nats.tolist() for kind, cost in self.start.items()}
        return {
            "args": {},
            "attributes": {**(self._journal.mark() if self._journal else NOTHING), "start": kept},
        }

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **others: Any
    ) -> None:
        """Open the journal, and evaluate held-out text before the first update."""
        kept = state.stateful_callbacks[type(self).__name__]["attributes"]
        self._journal = EventLog(self.folder, kept["events"], silent=not self.group.first)
        if not state.global_step:
            self._measure(model, state)
            return
        for kind, gauge in self.watched.gauges.items():
            self.start[kind] = gauge.cost(np.array(kept["start"][kind]))
        if state.global_step >= state.max_steps:  # nothing is left but to say how it ended
            self.now = self._costs(model)

    def on_step_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **others: Any
    ) -> None:
        """Evaluate held-out text where it is due, and after the last update."""
        if state.global_step % self.watched.every == 0 or state.global_step == state.max_steps:
            self._measure(model, state)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **others: Any
    ) -> None:
        """Write the training loss to the journal."""
        if self._journal is None or not logs or "loss" not in logs:
            return
        self._loss = float(logs["loss"])
        self._journal.write(
            "train",
            state.global_step,
            loss=self._loss,
            rate=logs.get("learning_rate"),
            norm=logs.get("grad_norm"),
            tokens=state.global_step * self.watched.batch * self.watched.blocks.order.block,
        )
        self._tell(state)

    def changes(self) -> dict[str, Change]:
        """Return bits per byte now minus at the start, by kind.

        Of general text, what is forgotten.
        """
        return {kind: change(self.start[kind], cost) for kind, cost in self.now.items()}

    def measure_merged(self, model: Any) -> dict[str, float]:
        """Read held-out text with the model that is saved, and return its bits per byte by kind."""
        self.now = self._costs(model)
        return {kind: cost.bits_per_byte for kind, cost in self.now.items()}

    def _measure(self, model: Any, state: Any) -> None:
        assert self._journal is not None
        self.now = self._costs(model)
        self.start = self.start or self.now
        read = shares(
            self.watched.blocks, self.watched.kinds, state.global_step * self.watched.batch
        )
        self._journal.write(
            "evaluate",
            state.global_step,
            tokens=sum(one.tokens for one in read),
            bits_per_byte={kind: cost.bits_per_byte for kind, cost in self.now.items()},
            change={kind: asdict(found) for kind, found in self.changes().items()},
            forgetting=asdict(self.changes()[GENERAL]) if GENERAL in self.now else None,
            sources=[asdict(one) for one in read],
        )
        self._tell(state)

    def _costs(self, model: Any) -> dict[str, UnitLosses]:
        return {
            kind: self.group.cost(gauge, model, self.watched.micro)
            for kind, gauge in self.watched.gauges.items()
        }

    def _tell(self, state: Any) -> None:
        if self.progress is None:
            return
        facts = [f"update {state.global_step:,} of {state.max_steps:,}"]
        facts += [f"loss {self._loss:.4g}"] if self._loss is not None else []
        for kind, found in self.changes().items():
            word = {DOMAIN: "", GENERAL: " forgotten"}[kind] if found.value > 0 else ""
            change = f"{difference(found.value, 4)}{word}"
            facts.append(f"{kind} {self.now[kind].bits_per_byte:.4f} ({change})")
        self.progress(", ".join(facts), state.global_step / max(1, state.max_steps))
