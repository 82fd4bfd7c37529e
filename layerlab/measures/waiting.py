"""Layers that wait for those of other sequences, so that their heads are read side by side.

On a processor none waits. On an accelerator a layer of one sequence has too few heads to keep it
busy: those of the next sequences, while they are as long and what waits has room, are read with it.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from torch import Tensor

from layerlab.measures.support.attention_pass import HeadGroup, HeadQuantity
from layerlab.observe.tracing.attention.tiles import SeenMasks
from layerlab.observe.tracing.device_schedule import device_schedule
from layerlab.observe.tracing.records import Layer
from layerlab.system.hardware import free_memory

LayerKey = tuple[int, str | None]


class Waiting:
    """The layers of a group of sequences, until the last of the group brings the same one."""

    def __init__(
        self, sequences: Sequence[Tensor], blocks: int, quantities: Sequence[HeadQuantity]
    ) -> None:
        self._lengths = [len(tokens) for tokens in sequences]
        self._blocks = blocks
        self._quantities = quantities
        self._last = -1
        self._held: dict[LayerKey, list[Layer]] = {}
        self._seen: SeenMasks = {}

    def add(self, layer: Layer) -> list[Layer]:
        """Take a layer, and return those that wait no longer."""
        if layer.attention is None and not layer.sublayers:
            return [layer]
        ready: list[Layer] = []
        if layer.sequence > self._last:
            ready = self.end()
            self._seen = {}  # those that are ready hold their own
            self._last = layer.sequence + self._together(layer) - 1
        key = (layer.layer, None if layer.attention is None else layer.attention.name)
        if layer.sequence < self._last:
            self._held.setdefault(key, []).append(_bare(layer))
            return ready
        return [*ready, *self._group([*self._held.pop(key, []), layer])]

    def end(self) -> list[Layer]:
        """Return the layers that waited for one that never came."""
        held, self._held = self._held, {}
        return [layer for layers in held.values() for layer in self._group(layers)]

    def _group(self, layers: list[Layer]) -> list[Layer]:
        records = [layer.attention for layer in layers if layer.attention is not None]
        if not records:
            return layers
        group = HeadGroup(records, self._quantities, self._seen)
        return [replace(layer, heads=(group, number)) for number, layer in enumerate(layers)]

    def _together(self, layer: Layer) -> int:
        """Return how many sequences from this layer's on are as long and may wait."""
        length = len(layer.tokens)
        alike = takewhile(lambda one: one == length, self._lengths[layer.sequence :])
        device = layer.stream.device
        room = min(device_schedule(device).waiting_bytes, free_memory(device) // 4)
        return min(len(list(alike)), 1 + room // (self._blocks * _size(_bare(layer))))


def _bare(layer: Layer) -> Layer:
    """Return a layer with nothing but what its heads and its gain are read from."""
    attention = layer.attention
    attention = None if attention is None else replace(attention, value=None)
    again = replace(layer, rerun=None, attend=None)
    return replace(again, attention=attention, entered=None, gradient=None)


def _size(layer: Layer) -> int:
    """Return the bytes of the tensors of a layer, each counted once."""
    held = [layer.stream]
    for record in (layer.attention, *layer.sublayers.values()):
        values = () if record is None else vars(record).values()
        held += [one for one in values if isinstance(one, Tensor)]
    return sum(one.nbytes for one in {one.data_ptr(): one for one in held}.values())
