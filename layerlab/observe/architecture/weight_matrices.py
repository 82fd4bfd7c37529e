"""The weight matrices of a model by layer and name: a row for each output, a column for each input.

The module that a tensor belongs to says whether it is transposed, and whether it lies in front of
the blocks, in one or behind them; experts that lie in one tensor are one matrix each.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.core_model_loading import dot_natural_key

from layerlab.errors import NotApplicable
from layerlab.numerics.formats.weight_layout import find_layout
from layerlab.observe.architecture.effective_weights import effective_weights, inner_module
from layerlab.observe.architecture.structure import anatomy
from layerlab.records.layer_names import EMBEDDING

PLAIN = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
# The number of an expert; in other lists a number tells one matrix from the next.
EXPERT = re.compile(r"(?:(?<=expert)|(?<=experts))\.(\d+)(?=\.|$)")

# A bias of each expert is a vector of each, and the decay of a state has one for each channel. Of
# the messages between loops (Inkling 2) each has a query; files stack them otherwise than memory.
_VECTORS = re.compile(
    r"bias$|(?:^|\.)(?:A_log|message_input\.query|middle_cycle_cross_pass_(?:kv_)?queries)$"
)


@dataclass(frozen=True, kw_only=True)
class WeightMatrix:
    """One matrix as it is stored.

    Attributes:
        layer: the block, EMBEDDING in front of them, their number behind them.
        name: inside the block, without the number of an expert.
        expert: its number, None where the matrix is no expert's.
    """

    layer: int
    name: str
    expert: int | None
    weight: Float[Tensor, "row column"]


class MatrixNames:
    """Places of a model's tensors, by their names: also by those without the base model's.

    Args:
        joined: names that only a file has, with those of the weights that they become a part of.
    """

    def __init__(self, model: PreTrainedModel, joined: Mapping[str, str] | None = None) -> None:
        self.model = model
        self.prefix = getattr(model, "base_model_prefix", "") + "."
        names = effective_weights(model, shared=True)
        self.order = {name: number for number, name in enumerate(names)}
        self.stack, self.blocks, self.last = "", 0, -1
        with suppress(NotApplicable):
            found = anatomy(model)
            self.stack, self.blocks = found.name + ".", len(found.blocks)
            inside = [number for name, number in self.order.items() if name.startswith(self.stack)]
            self.last = max(inside, default=-1)
        for name, whole in (joined or {}).items():
            self.order[self._own(name)] = self.order.get(whole, len(self.order))

    def cut(self, stored: str, tensor: Tensor) -> Iterator[WeightMatrix]:
        """Yield the matrices of a tensor: none of a vector or a convolution, several of experts."""
        name = self._own(stored)
        owner = self._owner(name)
        if isinstance(owner, _CONVOLUTIONS) or tensor.dtype not in PLAIN or _VECTORS.search(name):
            return
        layer, inside = self._place(name)
        numbered = EXPERT.search(f".{inside}")
        expert = int(numbered[1]) if numbered and layer != EMBEDDING else None
        label = EXPERT.sub("", f".{inside}").strip(".").removesuffix(".weight")
        tensor = tensor.mT if _is_turned(tensor, owner, name) else tensor
        tensor = find_layout(owner, name.rpartition(".")[2], tensor).to_matrices(tensor)
        if tensor.ndim == 2 and min(tensor.shape) > 1:
            yield WeightMatrix(layer=layer, name=label, expert=expert, weight=tensor)
        elif tensor.ndim == 3 and min(tensor.shape[1:]) > 1:
            for number, part in enumerate(tensor):
                yield WeightMatrix(layer=layer, name=label, expert=number, weight=part)

    def key(self, stored: str) -> tuple[int, int, list[Any]]:
        """Return by what the names of a file are put into the order of the model.

        The parts of a weight, such as experts that are stored one by one, follow their numbers.
        """
        name = self._own(stored)
        place = self.order.get(name, len(self.order))
        return self._place(name)[0], place, dot_natural_key(name)

    def _own(self, stored: str) -> str:
        longer = self.prefix + stored
        stored_there = stored in self.order or stored.startswith(self.stack or self.prefix)
        return stored if stored_there or not self._has(longer) else longer

    def _has(self, name: str) -> bool:
        return name in self.order or (bool(self.stack) and name.startswith(self.stack))

    def _owner(self, name: str) -> nn.Module | None:
        try:
            return inner_module(self.model.get_submodule(name.rpartition(".")[0]))
        except AttributeError:  # a name that only the file has: experts stored one by one
            return None

    def _place(self, name: str) -> tuple[int, str]:
        """Return the layer of a tensor, and its name inside it."""
        if self.stack and name.startswith(self.stack):
            number, _, inside = name.removeprefix(self.stack).partition(".")
            if number.isdigit():
                return int(number), inside
        # Some heads are declared before what they read, and some embeddings behind the blocks.
        head = self.stack.startswith(self.prefix) and not name.startswith(self.prefix)
        behind = head or (bool(self.blocks) and self.order.get(name, -1) > self.last)
        behind = behind and not isinstance(self._owner(name), nn.Embedding)
        return self.blocks if behind else EMBEDDING, name.removeprefix(self.prefix)


def _is_turned(tensor: Tensor, owner: nn.Module | None, name: str) -> bool:
    """Return whether a file holds a stack the other way round than the module it is loaded into."""
    own = getattr(owner, name.rpartition(".")[2], None)
    if tensor.ndim != 3 or not isinstance(own, Tensor) or own.shape == tensor.shape:
        return False
    return own.shape == tensor.mT.shape
