"""The measures of one reading: of what a forward pass left, of gradients, and of weights.

They are those of `layerlab.inspect`, and start from no earlier result: a reading depends on the
weights and the batch alone, and a run that was interrupted reads the same. A warm start would save
nothing here: Lanczos from the all-ones vector settles an attention matrix in a few products. All
layers are read side by side, and the host waits for the device once they are.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf, isnan, nan, sqrt
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from layerlab.measures.quantities.attention import BIASED, FOCUS
from layerlab.measures.quantities.diversity import relative_residual
from layerlab.measures.quantities.stream import norm
from layerlab.measures.quantities.weights.querykey import NORMED
from layerlab.measures.support.attention_pass import End, HeadQuantity, read_joined
from layerlab.measures.support.centring import precise
from layerlab.measures.support.lanczos import Perron, Process
from layerlab.measures.support.products import Profile
from layerlab.observe.architecture.parameter_layers import layer_of
from layerlab.observe.architecture.qkv_layouts import KEY_NORM, QUERY_NORM, layout
from layerlab.observe.architecture.structure import AttentionPart, ModelStructure, text_config
from layerlab.observe.tracing.attention.probe import AttentionCall
from layerlab.observe.tracing.attention.record import AttentionRecord, group_alike
from layerlab.observe.tracing.attention.tiles import all_triangular
from layerlab.observe.tracing.device_schedule import device_schedule, read_host
from layerlab.records.layer_names import EMBEDDING
from layerlab.shapes import Hidden
from layerlab.system.torch_settings import float32_products
from layerlab.training.monitor.capture import Recording
from layerlab.training.monitor.form_norms import form_norms, squared_forms

ReadingRow = tuple[int | None, int | None, str, float]
"""Layer, head, measure, value."""

WORST = ("score", "attention_norm", "stream_norm", "growth")
"""Measures of which the largest over the sequences counts; of the others it is their mean."""

LOW = ("entropy", "relative_residual")

OF_HEADS = {
    "score": "logit_max",
    "attention_norm": "norm",
    "entropy": "entropy",
    "sink_mass": "sink_mass",
}
"""Measures of heads, and the columns of a pass over attention that they are read from."""

ReadingPlace = tuple[int | float, int | None, int | None, str]
"""Number of the attention layer, inf where it is about none; layer, head, measure."""


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
        self._waiting: list[tuple[Tensor, Callable[[Any], None]]] = []
        self._values: dict[ReadingPlace, list[float]] = {}

    def take(self, recording: Recording | None, gradient: float | None = None) -> None:
        """Measure what was recorded, the gradients and the weights as they are now.

        Args:
            recording: None where no forward pass was heard.
            gradient: norm of the whole gradient before it was clipped, where that is known.
        """
        # Training may allow TF32, in which the enclosure of a norm does not hold.
        with torch.no_grad(), float32_products():
            if recording is not None:
                self.notes |= recording.notes
                self._try("attention", self._attentions, recording.attention_calls)
                self._try("stream", self._streams, recording.streams)
            self._try("weights", self._weights)
            self._try("gradient", self._gradients, recording, gradient)
            self._try("reading", self._read)

    def summary(self) -> dict[str, float]:
        """Return one number for each measure: the largest, or the smallest where small is bad."""
        found: dict[str, list[float]] = {}
        for layer, _, measure, value in self.rows:
            if measure != "gradient" or layer is None:
                found.setdefault(measure, []).append(value)
        return {name: _worst(values, -1 if name in LOW else 1) for name, values in found.items()}

    def _try(self, what: str, measure: Callable[..., None], *args: Any) -> None:
        """Keep an error of a measure as a note, so that training goes on."""
        try:
            measure(*args)
        except Exception as error:
            self.notes.setdefault(what, f"{type(error).__name__}: {error}")

    def _read(self) -> None:
        """Wait for all that was measured, and make rows of it."""
        waiting, self._waiting = self._waiting, []  # what waits holds gradients, and this object
        found = read_host([values for values, _ in waiting])
        for values, (_, hand_over) in zip(found, waiting, strict=True):
            hand_over(values.tolist())
        for place, each in sorted(self._values.items(), key=lambda one: one[0][0]):
            _, layer, head, measure = place
            self.rows.append((layer, head, measure, _pool(measure, each)))

    def _add(self, place: ReadingPlace, value: float) -> None:
        """Take the value of one sequence."""
        self._values.setdefault(place, []).append(value)

    def _attentions(self, calls: Mapping[int, list[AttentionCall]]) -> None:
        gathered: list[tuple[AttentionPart, AttentionRecord]] = []
        for part in self.stack.attentions:
            self._try(part.name, self._gather, part, calls.get(part.number), gathered)
        if not gathered:
            return
        records = all_triangular([record for _, record in gathered])
        for numbers in group_alike(records):
            parts, alike = zip(*((gathered[one][0], records[one]) for one in numbers), strict=True)
            self._try("attention", self._heads, parts, alike)

    def _gather(
        self,
        part: AttentionPart,
        calls: list[AttentionCall] | None,
        gathered: list[tuple[AttentionPart, AttentionRecord]],
    ) -> None:
        if calls is None:
            self.notes.setdefault(part.name, "its attention was not heard in the forward pass")
        if not calls:
            return
        if not _drops(part.module) and (fault := _fault(calls[0])):
            self.notes[part.name] = fault
            self.refused.add(part.number)
        if part.number in self.refused:
            return
        if any(call.biased for call in calls):
            self.notes.setdefault("score", f"score: not applicable, because {BIASED}")
        gathered += [(part, call.record()) for call in calls]

    def _heads(self, parts: Sequence[AttentionPart], alike: Sequence[AttentionRecord]) -> None:
        """Read the heads of attention layers, each on one sequence, that are alike."""
        found = read_joined(alike, [FOCUS, _NORM])
        for measure, column in OF_HEADS.items():
            if measure != "score" or not alike[0].biased:
                values = found[column].view(len(parts), -1)
                self._waiting.append((values, partial(self._add_heads, parts, measure)))

    def _add_heads(
        self, parts: Sequence[AttentionPart], measure: str, found: list[list[float]]
    ) -> None:
        for part, heads in zip(parts, found, strict=True):
            for head, value in enumerate(heads):
                self._add((part.number, part.block, head, measure), value)

    def _weights(self) -> None:
        alike: dict[tuple[Any, ...], list[tuple[AttentionPart, Tensor]]] = {}
        for part in self.stack.attentions:
            self._try(f"{part.name} weights", self._form, part, alike)
        for found in alike.values():
            parts = [part for part, _ in found]
            norms = form_norms(torch.cat([forms for _, forms in found])).view(len(parts), -1)
            self._waiting.append((norms, partial(self._add_heads, parts, "querykey_norm")))

    def _form(
        self, part: AttentionPart, alike: dict[tuple[Any, ...], list[tuple[AttentionPart, Tensor]]]
    ) -> None:
        """Add the squared form of the scores of every head to those of layers of its shape."""
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
        query, key = (one.rows(found.head_width)[0].detach() for one in (found.query, found.key))
        forms = squared_forms(_whole(query), _whole(key))
        alike.setdefault((forms.device, forms.shape), []).append((part, forms))

    def _streams(self, streams: Mapping[int, list[Hidden]]) -> None:
        if EMBEDDING not in streams:
            self.notes.setdefault("stream", "its blocks were not heard in the forward pass")
        if "stream" in self.notes:
            return
        layers = sorted(streams)
        for sequence, first in enumerate(streams[EMBEDDING]):
            stack = torch.stack([streams[layer][sequence].to(first.device) for layer in layers])
            self._waiting.append((_sizes(stack), partial(self._add_streams, layers)))

    def _add_streams(self, layers: Sequence[int], found: list[list[float]]) -> None:
        """Take length and spread of the stream after each layer; the first is the embedding."""
        start = found[0][0]
        for layer, (length, spread) in zip(layers, found, strict=True):
            self._add((inf, layer, None, "relative_residual"), spread)
            self._add((inf, layer, None, "stream_norm"), length)
            self._add((inf, layer, None, "growth"), length / start if start else nan)

    def _gradients(self, recording: Recording | None, total: float | None) -> None:
        front = None if recording is None or not recording.streams else recording.front
        gradients, layers = gather_gradients(self.model, self.stack, front or ())
        if front is None:  # unheard: what is in front of the blocks is not known
            inside = range(len(self.stack.blocks))
            layers = {layer: held for layer, held in layers.items() if layer in inside}
        if not gradients:
            self.notes["gradient"] = (
                "no parameter has one; call step after backward and before zero_grad"
            )
            return
        norms = torch.stack(gradient_norms(gradients))
        self._waiting.append((norms, partial(self._add_gradients, gradients, layers, total)))

    def _add_gradients(
        self,
        gradients: Sequence[Tensor],
        layers: Mapping[int, list[int]],
        total: float | None,
        norms: list[float],
    ) -> None:
        # Squares beyond the range of float32 are taken again, of one gradient at a time.
        lost = [number for number, one in enumerate(norms) if one in (0.0, inf)]
        wide = [gradient_norms([precise(gradients[number])])[0] for number in lost]
        for number, one in zip(lost, read_host(wide), strict=True):
            norms[number] = one.item()
        whole = _length(norms)
        # Clipping has scaled them all by one factor.
        factor = 1.0 if total is None or whole == 0 else total / whole
        for layer, held in sorted(layers.items()):
            size = _length([norms[number] for number in held])
            self._add((inf, layer, None, "gradient"), size * factor)
        self._add((inf, None, None, "gradient"), whole * factor)


def _solve(part: AttentionRecord, profile: Profile) -> tuple[Sequence[Process], End]:
    perron = Perron(profile, part.sums_to_one)
    return (perron,), lambda: {"norm": perron.norm}


_NORM = HeadQuantity(columns=("norm",), solve=_solve)


def _sizes(stack: Tensor) -> Tensor:
    """Return the length and the relative residual of each stream, as many at once as fit."""
    wide_bytes = 8 * stack[0].numel()
    together = max(1, device_schedule(stack.device).block_bytes // wide_bytes)

    def size(stream: Hidden) -> Tensor:
        return torch.stack([norm(stream), relative_residual(stream)])

    found: Tensor = torch.vmap(size, chunk_size=together)(stack)
    return found


def gather_gradients(
    model: PreTrainedModel, stack: ModelStructure, front: Container[str]
) -> tuple[list[Tensor], dict[int, list[int]]]:
    """Return the gradients, each once, and which of them count in which layer.

    Layers are EMBEDDING, the blocks from 0, then the rest. A weight that blocks share counts in
    each of them, and once in the whole.
    """
    blocks = range(len(stack.blocks))
    gradients: list[Tensor] = []
    numbers: dict[int, int] = {}
    layers: dict[int, list[int]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.grad is None:
            continue
        layer, first = layer_of(name, stack, front), id(parameter) not in numbers
        number = numbers.setdefault(id(parameter), len(gradients))
        if first:
            gradients.append(parameter.grad)
        elif layer not in blocks or number in layers.get(layer, []):  # a head that is the embedding
            continue
        layers.setdefault(layer, []).append(number)
    return gradients, layers


def gradient_norms(gradients: Sequence[Tensor]) -> list[Tensor]:
    """Return the Euclidean norm of each gradient, in float32 or wider; sharded are gathered."""
    dense = [one.coalesce().values() if one.is_sparse else one for one in gradients]
    alike: dict[Any, list[int]] = {}
    for number, gradient in enumerate(dense):
        mesh = getattr(gradient, "device_mesh", None)
        alike.setdefault((mesh, gradient.device, gradient.dtype), []).append(number)
    found: dict[int, Tensor] = {}
    for numbers in alike.values():
        dtype = torch.promote_types(dense[numbers[0]].dtype, torch.float32)
        norms = torch._foreach_norm([dense[number] for number in numbers], 2, dtype)
        found |= zip(numbers, map(_whole, norms), strict=True)
    home = dense[0].device
    return [found[number].to(home) for number in range(len(dense))]


def _length(norms: Sequence[float]) -> float:
    return sqrt(sum(one * one for one in norms))


def _pool(measure: str, values: Sequence[float]) -> float:
    """Pool a reading over the sequences; one that is no number is passed on."""
    if measure in WORST:
        return _worst(values)
    return sum(values) / len(values)


def _worst(values: Sequence[float], sign: int = 1) -> float:
    """Return the largest value, the smallest where the sign is -1, NaN before either."""
    return max(values, key=lambda value: (isnan(value), sign * value))


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
