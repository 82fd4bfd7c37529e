"""The measures of one reading: of what a forward pass left, of gradients, and of weights.

They are those of `layerlab.inspect`, by its own functions, and start from no earlier result: a
reading depends on the weights and the batch alone, and a run that was interrupted reads the same.
A warm start would save nothing here. Lanczos from the all-ones vector settles an attention matrix
in a few products, and decomposing the thin factors of W_k^T W_q was measured to be ten times
quicker than iterating with them.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from math import nan
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from layerlab.measures.quantities.attention import BIASED, FOCUS
from layerlab.measures.quantities.diversity import relative_residual
from layerlab.measures.quantities.stream import norm
from layerlab.measures.quantities.weights.querykey import NORMED, factored_spectrum
from layerlab.measures.support.attention_pass import End, HeadQuantity, read_heads
from layerlab.measures.support.lanczos import Perron, Process
from layerlab.measures.support.products import Profile
from layerlab.observe.architecture.parameter_layers import layer_of
from layerlab.observe.architecture.qkv_layouts import KEY_NORM, QUERY_NORM, layout
from layerlab.observe.architecture.structure import AttentionPart, ModelStructure, text_config
from layerlab.observe.tracing.attention.probe import AttentionCall
from layerlab.observe.tracing.attention.record import AttentionRecord
from layerlab.records.layer_names import EMBEDDING
from layerlab.shapes import HeadVector
from layerlab.training.monitor.capture import Recording

ReadingRow = tuple[int | None, int | None, str, float]
"""Layer, head, measure, value."""

WORST = ("score", "attention_norm", "stream_norm", "growth")
"""Measures of which the largest over the sequences counts; of the others it is their mean."""

LOW = ("entropy", "relative_residual")


class Reading:
    """Rows of one update, and why some are missing."""

    def __init__(self, model: PreTrainedModel, stack: ModelStructure, refused: set[int]) -> None:
        """Prepare to measure one update.

        Args:
            refused: attention layers that were found not to be plain attention; more are added.
        """
        self.model, self.stack, self.refused = model, stack, refused
        self.rows: list[ReadingRow] = []
        self.notes: dict[str, str] = {}

    def take(self, recording: Recording, gradient: float | None = None) -> None:
        """Measure what was recorded, the gradients and the weights as they are now.

        Args:
            gradient: norm of the whole gradient before it was clipped, where that is known.
        """
        self.notes |= recording.notes
        with torch.no_grad():
            for part in self.stack.attentions:
                self._try(part.name, self._attention, part, recording.heard.get(part.number))
                self._try(f"{part.name} weights", self._weights, part)
            self._try("stream", self._streams, recording.streams)
            self._try("gradient", self._gradients, recording, gradient)

    def summary(self) -> dict[str, float]:
        """Return one number for each measure: the largest, or the smallest where small is bad."""
        found: dict[str, list[float]] = {}
        for layer, _, measure, value in self.rows:
            if measure != "gradient" or layer is None:
                found.setdefault(measure, []).append(value)
        return {name: (min if name in LOW else max)(values) for name, values in found.items()}

    def _try(self, what: str, measure: Callable[..., None], *args: Any) -> None:
        """Keep an error of a measure as a note, so that training goes on."""
        try:
            measure(*args)
        except Exception as error:
            self.notes.setdefault(what, f"{type(error).__name__}: {error}")

    def _attention(self, part: AttentionPart, calls: list[AttentionCall] | None) -> None:
        if not calls:
            self.notes.setdefault(part.name, "its attention was not heard in the forward pass")
            return
        if not _drops(part.module) and (fault := _fault(calls[0])):
            self.notes[part.name] = fault
            self.refused.add(part.number)
        if part.number in self.refused:
            return
        found: dict[str, list[Tensor]] = {}
        for call in calls:
            if call.biased:
                self.notes.setdefault("score", f"score: not applicable, because {BIASED}")
            for measure, values in _heads(call.record(0)).items():
                found.setdefault(measure, []).append(values)
        for measure, each in found.items():
            for head, value in enumerate(_pool(measure, torch.stack(each)).tolist()):
                self.rows.append((part.block, head, measure, value))

    def _weights(self, part: AttentionPart) -> None:
        children = dict(part.module.named_children())
        if any(children.get(name) is not None for name in (*QUERY_NORM, *KEY_NORM)):
            self.notes["querykey_norm"] = NORMED
            return
        block = getattr(self.stack.blocks[part.block], "_orig_mod", self.stack.blocks[part.block])
        found = layout(block, part.module, text_config(self.model))
        if found.query is None or found.key is None:
            reasons = [found.refused.get(name) for name in ("query", "key")]
            self.notes["querykey_norm"] = next(filter(None, reasons), "no weights were found")
            return
        query, key = (one.rows(found.head_width)[0] for one in (found.query, found.key))
        values = factored_spectrum(_exact(query), _exact(key))[:, 0]
        for head, value in enumerate(values.tolist()):
            self.rows.append((part.block, head, "querykey_norm", value))

    def _streams(self, streams: Mapping[int, list[Tensor]]) -> None:
        if "stream" in self.notes:
            return
        start = torch.stack([norm(h) for h in streams[EMBEDDING]])
        for layer, each in sorted(streams.items()):
            length = torch.stack([norm(h) for h in each])
            spread = torch.stack([relative_residual(h) for h in each])
            columns = {
                "relative_residual": spread,
                "stream_norm": length,
                "growth": torch.where(start == 0, nan, length / start),
            }
            for measure, values in columns.items():
                self.rows.append((layer, None, measure, float(_pool(measure, values))))

    def _gradients(self, recording: Recording, total: float | None) -> None:
        sizes, found = gradient_norms(self.model, self.stack, recording.front)
        if not recording.streams:  # unheard: what is in front of the blocks is not known
            sizes = {
                layer: size for layer, size in sizes.items() if 0 <= layer < len(self.stack.blocks)
            }
        # Clipping has scaled them all by one factor.
        factor = 1.0 if total is None or found == 0 else total / found
        for layer, size in sorted(sizes.items()):
            self.rows.append((layer, None, "gradient", size * factor))
        self.rows.append((None, None, "gradient", found * factor))


def _heads(attended: AttentionRecord) -> dict[str, HeadVector]:
    seen = read_heads(attended, [FOCUS, _NORM])
    score = {} if attended.biased else {"score": seen["logit_max"]}
    return {
        **score,
        "attention_norm": seen["norm"],
        "entropy": seen["entropy"],
        "sink_mass": seen["sink_mass"],
    }


def _solve(part: AttentionRecord, profile: Profile) -> tuple[Sequence[Process], End]:
    perron = Perron(profile)
    return (perron,), lambda: {"norm": perron.norm}


_NORM = HeadQuantity(columns=("norm",), solve=_solve)


def _exact(weight: Tensor) -> Tensor:
    """Return a weight in float32 on a GPU, else in float64 on the CPU."""
    weight = _whole(weight.detach())
    return weight.float() if weight.device.type == "cuda" else weight.cpu().double()


def gradient_norms(
    model: PreTrainedModel, stack: ModelStructure, front: Container[str]
) -> tuple[dict[int, float], float]:
    """Return gradient norms by layer, EMBEDDING, the blocks from 0, then the rest; and the whole.

    A weight that blocks share counts in each of them, and once in the whole.
    """
    blocks = range(len(stack.blocks))
    layers: dict[int, list[Tensor]] = {}
    held: dict[int, set[int]] = {}
    squares: dict[int, Tensor] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.grad is None:
            continue
        layer, own = layer_of(name, stack, front), id(parameter)
        seen = held.setdefault(own, set())
        if layer in seen or (seen and layer not in blocks):  # as a head that is the embedding
            continue
        seen.add(layer)
        if own not in squares:
            squares[own] = _square(parameter.grad)
        layers.setdefault(layer, []).append(squares[own])
    norms = {layer: float(torch.stack(each).sum().sqrt()) for layer, each in layers.items()}
    total = sum(float(one) for one in squares.values())
    return norms, total**0.5


def _square(gradient: Tensor) -> Tensor:
    values = gradient.detach()
    values = values.coalesce().values() if values.is_sparse else values
    return _whole(torch.linalg.vector_norm(values, dtype=torch.float32)).square()


def _pool(measure: str, values: Tensor) -> Tensor:
    """Pool a reading over the sequences, its first axis."""
    return values.amax(0) if measure in WORST else values.mean(0)


def _whole(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor whole; every process must call this."""
    full: Any = getattr(tensor, "full_tensor", None)
    return tensor if full is None else full()


def _fault(call: AttentionCall) -> str | None:
    """Return why a layer is no plain softmax attention, or None.

    As coarse as in bfloat16, because rounding may be emulated.
    """
    return None if call.output is None else replace(call, output=call.output.bfloat16()).fault()


def _drops(attention: nn.Module) -> bool:
    """Return whether probabilities are dropped, so that the output is not that of the scores."""
    if not attention.training:
        return False
    rates = [value for name, value in vars(attention).items() if "dropout" in name]
    inner = [module.p for module in attention.modules() if isinstance(module, nn.Dropout)]
    return any(isinstance(rate, int | float) and rate > 0 for rate in (*rates, *inner))
