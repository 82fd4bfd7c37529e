"""Every chosen measure read on one model, in one pass over each sequence.

The trace hands out one layer at a time; each measure reads it at once, so that no layer outlives
its turn. What cannot be read is kept as a reason, never as a missing row without one.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from layerlab.console.progress import NullProgress, Progress
from layerlab.errors import NotApplicable, UserError
from layerlab.loading.model import LoadedModel
from layerlab.loading.weights.by_layer import project_layers, read_layers
from layerlab.loading.weights.matrices import count_matrices, find_weight_faults, read_matrices
from layerlab.measures.kept_readings import KeptReadings
from layerlab.measures.measure import (
    WEIGHTS,
    Measure,
    MeasureContext,
    ModelContext,
    Row,
    describe_packed,
    refuse_offloaded,
)
from layerlab.measures.readings import Readings
from layerlab.measures.waiting import Waiting
from layerlab.observe.architecture.head_weights import HeadWeights, project
from layerlab.observe.architecture.structure import ModelStructure, find_rotary
from layerlab.observe.tracing.records import Layer
from layerlab.observe.tracing.streams import read_streams
from layerlab.observe.tracing.trace import Trace, observing, trace
from layerlab.observe.tracing.verify_weights import verify_weights
from layerlab.records.layer_names import layer_name


def readings(
    subject: LoadedModel,
    sequences: Sequence[Tensor],
    measures: Sequence[Measure],
    progress: Progress | None = None,
    more: Sequence[Tensor] = (),
    kept: KeptReadings | None = None,
) -> Readings:
    """Read the measures on every sequence; without one, those that need weights alone.

    Args:
        more: batches of other sequences, for measures that pool tokens.
        kept: what need not be read again.
    """
    kept = kept or KeptReadings()
    return _Reader(subject, sequences, measures, progress or NullProgress(), more, kept).run()


class _Reader:
    """The state of one reading: runs of the measures, weights found so far, reasons met."""

    def __init__(
        self,
        subject: LoadedModel,
        sequences: Sequence[Tensor],
        measures: Sequence[Measure],
        progress: Progress,
        more: Sequence[Tensor],
        kept: KeptReadings,
    ) -> None:
        self.subject = subject
        self.sequences = sequences
        self.more = more
        self.kept = kept
        self.progress = progress
        self.found = Readings(faults=find_weight_faults(subject))
        self.runs = {
            measure.name: MeasureContext(
                options=_fill(measure, sequences),
                subject=subject,
                sequences=sequences,
                batches=len(sequences) + len(more),
            )
            for measure in measures
        }
        for measure in measures:
            kept.resume(measure, self.runs[measure.name])
        accepted = [one for one in measures if self.accepts(one)]
        self.runners = [one for one in accepted if "model" in one.needs]
        self.matrices = [one for one in accepted if "matrices" in one.needs]
        passing = [*self.runners, *self.matrices]
        self.measures = [one for one in accepted if one not in passing]
        self.waiting = Waiting(
            () if subject.offloaded else sequences,  # what waits would hold the layer's weights
            len(getattr(subject.stack, "blocks", ())),
            [one.heads(self.runs[one.name].options) for one in self.measures if one.heads],
        )
        self.weights: dict[str, HeadWeights] = {}
        self.fronts: dict[int, nn.Module] = {}
        self.exposed = False

    def accepts(self, measure: Measure) -> bool:
        """Return whether the model has what the measure needs, and keep the reason where not."""
        stack = self.subject.stack
        reason = measure.applies(self.subject)
        if reason is None and measure.needs <= WEIGHTS and (packed := self.subject.packed):
            reason = describe_packed(packed)
        if reason is None and "matrices" in measure.needs:
            return True
        if reason is None and isinstance(stack, str):
            reason = stack
        elif reason is None and not isinstance(stack, str) and not stack.attentions:
            if measure.needs & {"attention", "weights"} and "stream" not in measure.needs:
                reason = f"{type(self.subject.model).__name__} has no softmax attention"
        if reason is not None:
            self.found.refused[measure.name] = reason
        return reason is None

    def run(self) -> Readings:
        for measure in self.measures:
            self.found.rows[measure.name] = []
        if self.measures and (self.subject.stored or not self.sequences):
            self._read_weights()
        elif self.measures and not isinstance(self.subject.stack, str):
            self.progress.begin(self.subject.name, self._steps())
            gradient = self._needs("gradient") and not self.subject.offloaded
            try:
                found = trace(
                    self.subject.model,
                    self.subject.stack,
                    # Where only weights are read, a short piece shows that they are used.
                    self.sequences if self._reads_text else [self.sequences[0][:2]],
                    self.read,
                    gradient=gradient,
                    fronts=self.fronts,
                )
                for layer in self.waiting.end():
                    self._read_heads(layer)
                if not found.no_stream:
                    self._read_more(self.subject.stack)
                self._finish(found)
            except NotApplicable as reason:
                for measure in self.measures:
                    self.refuse(measure, str(reason))
        self._read_matrices()
        self._read_whole()
        return self.found

    def _read_more(self, stack: ModelStructure) -> None:
        """Give the tokens of other sequences to the measures that pool them."""
        pooling = [(one.pool, self.runs[one.name]) for one in self.measures if one.pool is not None]
        if not pooling:
            return

        def give(layer: int, tokens: Tensor) -> None:
            for pool, run in pooling:
                pool(layer, tokens, run)

        with observing(self.subject.model):
            for batch in self.more:
                self.progress.step(f"{batch.numel():,} more tokens")
                read_streams(self.subject.model, stack, batch, give)

    def _read_whole(self) -> None:
        """Run the measures that run the model themselves."""
        name = self.subject.name
        if not self.runners:
            return
        context = ModelContext(
            subject=self.subject,
            sequences=self.sequences,
            begin=lambda runs: self.progress.begin(name, runs),
            step=lambda what: self.progress.step(what),
            trace=self._trace,
        )
        with observing(self.subject.model):
            for measure in self.runners:
                self.found.rows[measure.name] = []
                try:
                    self.take(measure, measure.read, context)
                    self._settle(measure, Trace())
                except UserError as reason:  # a kernel that cannot be looked into, for example
                    self.refuse(measure, str(reason))

    def _trace(self, tokens: Tensor, read: Callable[[Layer], None]) -> None:
        """Trace one sequence once, for a measure that runs the model itself."""
        stack = self.subject.stack
        assert not isinstance(stack, str)

        def give(layer: Layer) -> None:
            if layer.attention is not None and layer.sublayers:
                layer = replace(layer, weights=self._weights(layer))
            read(layer)

        trace(self.subject.model, stack, [tokens], give, fronts=self.fronts)

    def _read_weights(self) -> None:
        """Read the measures of heads' weights without a pass, one layer at a time."""
        stack, folder = self.subject.stack, self.subject.folder
        assert not isinstance(stack, str)
        self.progress.begin(self.subject.name, len(self.measures) * len(stack.attentions))
        kept = folder if self.subject.stored else None
        try:
            layers = project_layers(self.subject.model) if kept is None else read_layers(kept)
            for weights in layers:
                for measure in self.measures:
                    self.progress.step(f"layer {weights.layer}: {measure.name}")
                    self.take(measure, measure.read, weights)
        except NotApplicable as reason:
            for measure in self.measures:
                self.refuse(measure, str(reason))
        self._finish(Trace())

    def _read_matrices(self) -> None:
        """Read the measures of matrices, one matrix at a time."""
        if not self.matrices:
            return
        for measure in self.matrices:
            self.found.rows[measure.name] = []
        self.progress.begin(self.subject.name, count_matrices(self.subject))
        try:
            for given in read_matrices(self.subject):
                self.progress.step(f"{layer_name(given.layer)}: {given.name}")
                for measure in self.matrices:
                    self.take(measure, measure.read, given)
        except NotApplicable as reason:  # an adapter that is no plain LoRA
            for measure in self.matrices:
                self.refuse(measure, str(reason))
            return
        for measure in self.matrices:
            if measure.close is not None:
                self.take(measure, measure.close)
            self._settle(measure, Trace())

    @property
    def _reads_text(self) -> bool:
        return any(measure.needs != {"weights"} for measure in self.measures)

    def _steps(self) -> int:
        stack = self.subject.stack
        assert not isinstance(stack, str)
        once = sum(measure.needs == {"weights"} for measure in self.measures)
        every = len(self.measures) - once
        blocks = len(stack.blocks) + 1
        more = len(self.more) if any(measure.pool for measure in self.measures) else 0
        return len(self.sequences) * blocks * every + once * len(stack.attentions) + more

    def _needs(self, need: str) -> bool:
        return any(need in measure.needs for measure in self.measures)

    def read(self, layer: Layer) -> None:
        """Give one layer to every measure."""
        # Otherwise there is nothing to check the cut of its weights against.
        has_stream = bool(layer.sublayers or layer.stream.numel())
        if layer.attention is not None and has_stream and self._needs("weights"):
            layer = replace(layer, weights=self._weights(layer))
        self.exposed = self.exposed or bool(layer.sublayers)
        for measure in self.measures:
            if measure.heads is None:
                self._give(measure, layer)
        for ready in self.waiting.add(layer):
            self._read_heads(ready)

    def _read_heads(self, layer: Layer) -> None:
        """Give one layer to the measures that ask of its heads, once these are read together."""
        for measure in self.measures:
            if measure.heads is not None:
                self._give(measure, layer)

    def _give(self, measure: Measure, layer: Layer) -> None:
        """Give one layer to one measure, where it has what the measure needs."""
        bare = not layer.stream.numel()
        if bare and not measure.needs <= {"attention", "weights"}:
            return
        if layer.attention is not None and bare and not layer.sublayers:
            if "weights" in measure.needs:
                reason = "what its attention reads is not seen, so its weights cannot be checked"
                self.runs[measure.name].notes.setdefault("unchecked", reason)
        given = layer.weights if measure.needs == {"weights"} else layer
        if given is None or (given is not layer and layer.sequence):
            return
        self.progress.step(f"{layer_name(layer.layer)}: {measure.name}")
        if measure.needs == {"attention"} and layer.attention is None:
            return
        self.take(measure, measure.read, given)

    def take(self, measure: Measure, read: Callable[..., Iterable[Row]], *record: Any) -> None:
        """Keep the rows of one record, or the reason why it has none."""
        run = self.runs[measure.name]
        rows = self.kept.find(measure, record)
        if rows is None:
            rows = []
            try:
                rows.extend(read(*record, run))
            except NotApplicable as reason:
                run.notes.setdefault("not applicable", str(reason))
        else:
            self.progress.skip()
            if measure.learn is not None:
                measure.learn(*record, run)
        self.kept.keep(measure, record, rows)
        self.found.rows[measure.name].extend(rows)

    def _weights(self, layer: Layer) -> HeadWeights:
        """Return the layer's weights in heads, checked once against what the probe recorded."""
        assert layer.attention is not None and layer.block is not None
        name = layer.attention.name
        if name not in self.weights:
            if self.subject.offloaded:  # what was fetched for the layer before is let go
                self.weights.clear()
            self.weights[name] = self._project(layer)
        return self.weights[name]

    def _project(self, layer: Layer) -> HeadWeights:
        stack = self.subject.stack
        assert not isinstance(stack, str) and layer.attention is not None
        part = stack.attention(layer.attention.name)
        weights = project(
            stack.blocks[part.block],
            part,
            config=self.subject.config,
            front=self.fronts.get(part.block),
            rotary=find_rotary(self.subject.model),
        )
        sublayer = layer.sublayers.get("attention")
        if sublayer is None:
            return weights
        checked = verify_weights(weights, layer.attention, sublayer.entered, sublayer.left)
        # Two tokens that show that weights are used attain what says nothing of a text.
        return checked if self._reads_text else replace(checked, attained=None)

    def _finish(self, found: Trace) -> None:
        for measure in self.measures:
            run = self.runs[measure.name]
            if found.no_stream and measure.needs & {"stream", "rerun", "gradient"}:
                self.refuse(measure, found.no_stream)
                continue
            if measure.close is not None:
                self.take(measure, measure.close)
            if "gradient" in measure.needs and (waiting := refuse_offloaded(self.subject)):
                run.notes.setdefault("gradient", f"gradient: not measured, because {waiting}")
            elif found.no_gradient and "gradient" in measure.needs:
                run.notes.setdefault("gradient", found.no_gradient)
            if found.silent and measure.needs & {"attention", "weights"}:
                run.notes.setdefault("silent", "; ".join(found.silent.values()))
            if measure.name not in self.found.refused:
                self._settle(measure, found)
        self.found.loss_nats = found.loss_nats if self._reads_text else []
        self.found.faults += [
            {
                "kind": "stream",
                "layer": layer,
                "name": f"output of {layer_name(layer)}",
                "what": what,
            }
            for layer, what in sorted(found.faults.items())
        ]

    def _settle(self, measure: Measure, found: Trace) -> None:
        """Refuse a measure without a row, and keep the notes of one that has some."""
        run = self.runs[measure.name]
        if not self.found.rows[measure.name]:
            self.refuse(measure, self._why(measure, found))
            return
        if measure.heads is not None:  # those of several sequences were read a layer at a time
            self.found.rows[measure.name].sort(key=lambda row: row["sequence"])
        if run.notes:
            self.found.notes[measure.name] = list(run.notes.values())
        if run.picture:
            self.found.pictures[measure.name] = run.picture

    def _why(self, measure: Measure, found: Trace) -> str:
        notes = self.runs[measure.name].notes
        if notes:
            return next(iter(notes.values()))
        if found.faults:
            layer, what = min(found.faults.items())
            return f"{layer_name(layer)}: {what}"
        if "weights" in measure.needs and not self.exposed:
            return "its blocks expose neither attention nor feed-forward as modules of their own"
        return "it gave no reading on this model"

    def refuse(self, measure: Measure, reason: str) -> None:
        self.found.rows.pop(measure.name, None)
        self.found.refused[measure.name] = reason


def _fill(measure: Measure, sequences: Sequence[Tensor]) -> dict[str, Any]:
    """Return the measure's options.

    One called `tokens` that is left open is the longest sequence.
    """
    longest = max((len(tokens) for tokens in sequences), default=0)
    open_length = "tokens" in measure.options and measure.options["tokens"] is None
    return {**measure.options, **({"tokens": longest} if open_length else {})}
