"""Copies of a few sequences out of one forward pass, taken by hooks that compute nothing.

Measuring waits until the step is over: what surrounds a forward pass (autocast, emulated rounding,
checkpointing) cannot reach the measures then, and nothing that goes wrong in them can reach it.
"""

import inspect
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakIdKeyDictionary
from transformers import PreTrainedModel

from layerlab.numerics.emulation.emulated_tensor import plain
from layerlab.observe.architecture.parameter_layers import hearing_front
from layerlab.observe.architecture.structure import ModelStructure, first_tensor
from layerlab.observe.tracing.attention.probe import AttentionCall, probe
from layerlab.observe.tracing.block_calls import find_stream
from layerlab.records.layer_names import EMBEDDING
from layerlab.shapes import Hidden

ENDLESS = 2**31


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The part of a batch that is read: the first `tokens` of its first `sequences`.

    A single token attends to itself alone and is compared with none: its row is passed over.
    """

    sequences: int = 1
    tokens: int = 256

    def spans(self, shape: torch.Size, options: Mapping[str, Any]) -> list[tuple[int, slice]]:
        """Return which tokens of which rows are read: no padding, the first document only.

        Args:
            shape: batch x token.
        """
        masks, positions = options.get("attention_mask"), options.get("position_ids")
        rows, length = shape
        found: list[tuple[int, slice]] = []
        for row in range(rows):
            start, stop = _real(masks, row)
            stop = min(stop, length, start + self.tokens, _document(positions, row, start))
            if stop - start > 1:
                found.append((row, slice(start, stop)))
            if len(found) == self.sequences:
                break
        return found

    def cut(self, given: Any) -> Any:
        """Cut what a model is called with to the sequences that are read, without their labels."""
        args, options = given
        options = {name: value for name, value in options.items() if name != "labels"}
        rows = next((len(one) for one in tree_leaves(given) if _has_rows(one)), 0)

        def take(value: Any) -> Any:
            return value[: self.sequences] if _has_rows(value) and len(value) == rows else value

        return tree_map(take, (args, options))


def name_arguments(model: nn.Module, args: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Return what a model is called with by name, also what was given by its place."""
    try:
        bound = inspect.signature(model.forward).bind_partial(*args, **options).arguments
    except TypeError:  # of a wrapper that takes other things
        return options
    return {**options, **bound}


def _has_rows(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0


class Recording:
    """Outputs of blocks and attention layers for the beginning of some sequences.

    Attributes:
        streams: by layer, EMBEDDING first, one for each sequence.
        heard: by attention layer, one for each sequence, as calls with a batch of one.
        front: the names of the parameters in front of the blocks.
        notes: what could not be copied, and why.
    """

    def __init__(
        self, anatomy: ModelStructure, sample: Sample, options: Mapping[str, Any], check: bool
    ) -> None:
        """Prepare for one forward pass.

        Args:
            options: what the model is called with.
            check: also copy values and outputs, which tell whether it is plain attention.
        """
        self.streams: dict[int, list[Hidden]] = {}
        self.attention_calls: dict[int, list[AttentionCall]] = {}
        self.front = set[str]()
        self.notes: dict[str, str] = {}
        self._anatomy, self._check = anatomy, check
        self._sample, self._options = sample, options
        self._spans: list[tuple[int, slice]] = []
        self._shape = torch.Size()
        # Layers share a mask: it is copied, and read, once.
        self._masks: MutableMapping[Tensor, dict[tuple[int, int, int], Tensor | None]]
        self._masks = WeakIdKeyDictionary()

    def call(self, options: Mapping[str, Any]) -> None:
        """Take what the model itself is called with, inside of a wrapper."""
        self._options = options

    @contextmanager
    def listening(self, model: PreTrainedModel) -> Iterator[None]:
        """Listen to the model until the context ends, and remove all hooks."""
        with ExitStack() as stack:
            self.front = stack.enter_context(hearing_front(model, self._anatomy))
            blocks = self._anatomy.blocks
            first = blocks[0].register_forward_pre_hook(self._enter, with_kwargs=True)
            stack.callback(first.remove)
            for index, block in enumerate(blocks):
                hook = block.register_forward_hook(partial(self._leave, index))
                stack.callback(hook.remove)
            stack.enter_context(probe(self._anatomy, self._cut_record))
            yield

    def _enter(self, module: nn.Module, args: Any, options: Any) -> None:
        with self._tolerant("stream"):
            stream = find_stream(args, options)
            self._shape = stream.shape[:2]
            if not self._spans:
                self._spans = self._sample.spans(self._shape, self._options)
                if not self._spans:
                    self.notes["sequences"] = "none in this batch has two tokens beside padding"
            self._keep(EMBEDDING, stream)

    def _leave(self, layer: int, module: nn.Module, args: Any, output: Any) -> None:
        with self._tolerant("stream"):
            self._keep(layer, first_tensor(output))

    def _keep(self, layer: int, stream: Tensor) -> None:
        if stream.dim() != 3 or stream.shape[:2] != self._shape:
            shape = tuple(stream.shape)
            self.notes["stream"] = f"its blocks pass {shape}, not batch x token x width"
        elif layer in self.streams:
            self.notes["stream"] = "it runs its blocks more than once in one forward"
            self.streams[layer] = []
        else:
            self.streams[layer] = [_copy(stream[row, span]) for row, span in self._spans]

    def _cut_record(self, call: AttentionCall) -> None:
        number, name = call.part.number, call.part.name
        with self._tolerant(name):
            if number in self.attention_calls:
                self.notes[name] = "it computes attention more than once in one forward"
                self.attention_calls[number] = []
            else:
                self.attention_calls[number] = [
                    self._cut(call, row, span) for row, span in self._spans
                ]

    def _cut(self, call: AttentionCall, row: int, span: slice) -> AttentionCall:
        """Cut an attention call to these tokens; causal rows need no later key."""
        scores = _unfold(call.scores, self._shape[0])
        factor = call.query if call.query is not None else scores
        assert factor is not None
        tokens = factor.shape[2]
        past = call.keys - tokens  # keys of a learned prefix stand before the first token
        keys = slice(0 if past else span.start, min(span.stop, tokens) + past)
        # Kernels that are given no mask of scores have their rule from elsewhere.
        mask = call.mask if isinstance(call.mask, Tensor) and call.mask.dim() == 4 else None
        window = getattr(call.part.module, "sliding_window", None)
        return replace(
            call,
            query=_take(call.query, row, span),
            key=_take(call.key, row, keys),
            value=_take(call.value, row, keys) if self._check else None,
            mask=None if mask is None else self._cut_mask(mask, row, span, keys),
            bias=_take(call.bias, row, span, keys),
            causal=call.causal or (call.mask is not None and mask is None),
            window=window if isinstance(window, int) and mask is None else call.window,
            scores=_take(scores, row, span, keys),
            output=_show(call.output, row, span) if self._check else None,
        )

    def _cut_mask(self, mask: Tensor, row: int, span: slice, keys: slice) -> Tensor | None:
        copies = self._masks.setdefault(mask, {})
        place = row, keys.start, keys.stop
        if place not in copies:
            copies[place] = _take(mask, row, span, keys)
        return copies[place]

    @contextmanager
    def _tolerant(self, what: str) -> Iterator[None]:
        """Keep an error of a hook as a note, so that training goes on."""
        try:
            with torch.no_grad():
                yield
        except Exception as error:
            self.notes[what] = f"{type(error).__name__}: {error}"


def _real(mask: Any, row: int) -> tuple[int, int]:
    """Return the longest span of tokens that are not padding, the first of several."""
    if not isinstance(mask, Tensor) or mask.dim() != 2:
        return 0, ENDLESS
    kept = [bool(one) for one in mask[row].tolist()]
    ends = [index for index in range(len(kept) + 1) if index == len(kept) or not kept[index]]
    spans = [(before + 1, end) for before, end in pairwise([-1, *ends])]
    return max(spans, key=lambda span: span[1] - span[0])


def _document(positions: Any, row: int, start: int) -> int:
    """Return where the positions restart, which is where the next document begins."""
    if not isinstance(positions, Tensor) or positions.dim() != 2:
        return ENDLESS
    steps = positions[row % len(positions), start:].diff()
    again = (steps != 1).nonzero().flatten().tolist()
    return int(start + again[0] + 1) if again else ENDLESS


def _unfold(scores: Tensor | None, batch: int) -> Tensor | None:
    """Unfold the batch axis that some families fold into their heads."""
    if scores is None or len(scores) == batch:
        return scores
    return scores[0].unflatten(0, (batch, -1))


def _take(tensor: Tensor | None, row: int, rows: slice, keys: slice | None = None) -> Tensor | None:
    """Take one sequence out of a batch; axes of length 1 are shared by all."""
    if tensor is None:
        return None
    one = tensor[row % len(tensor)]
    one = one if one.shape[1] == 1 else one[:, rows]
    return _copy(one if keys is None else one[..., keys])[None]


def _show(output: Tensor | None, row: int, rows: slice) -> Tensor | None:
    return _copy(output[row, rows])[None] if output is not None and output.dim() == 4 else None


def _copy(tensor: Tensor) -> Tensor:
    """Copy a tensor as plain numbers, also where emulated rounding wraps it."""
    own: Tensor = plain(tensor)
    return own.detach().clone()
