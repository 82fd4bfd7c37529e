"""The product with the head, into rows of logits that begin where vectors are read fast.

A vocabulary of an odd size (the 50,257 tokens of GPT-2) has rows of logits at any address, and the
same product takes 1.3 to 1.5 times as long on a CPU; so does one into memory that the system has
to hand out page by page. The logits are the same.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from layerlab.system.hooks import replacing_forward

_BYTES = 64  # a line of the cache


class Room:
    """Memory for the logits of one call, which those of the next are written over."""

    def __init__(self) -> None:
        self.memory: Tensor | None = None

    def take(self, rows: int, width: int, features: Tensor) -> Tensor:
        """Return a matrix of the kind of some features, of whatever was written there last."""
        if self.memory is None or self.memory.numel() < rows * width:
            self.memory = features.new_empty(rows * width)
        return self.memory[: rows * width].view(rows, width)


@contextmanager
def align_head(model: nn.Module, room: Room | None = None) -> Iterator[None]:
    """Have a linear head write aligned logits, for the length of a context.

    A head that is not an unchanged `nn.Linear` stays as it is.

    Args:
        room: that they are written to; new memory, if left out.
    """
    head = _head(model)
    if head is None:
        yield
        return
    with replacing_forward(head, lambda features: multiply_aligned(features, head, room or Room())):
        yield


def multiply_aligned(features: Tensor, head: nn.Linear, room: Room) -> Tensor:
    """Return what a linear layer makes of features, as a view of wider rows on a CPU."""
    own, weight = nn.Linear.forward, head.weight
    # BLAS takes rows of any distance: other types and devices go through other libraries.
    plain = weight.dtype == features.dtype == torch.float32 and features.device.type == "cpu"
    if torch.is_grad_enabled() or not plain or weight.device.type != "cpu":
        return own(head, features)
    rows = features.reshape(-1, head.in_features)
    step = _BYTES // features.element_size()
    wide = room.take(len(rows), -(-head.out_features // step) * step, features)
    found = torch.mm(rows, weight.T, out=wide[:, : head.out_features])
    if head.bias is not None:
        found += head.bias
    return found.unflatten(0, features.shape[:-1])


def _head(model: nn.Module) -> nn.Linear | None:
    """Return the head of a model where it is a linear layer that nobody has changed."""
    get = getattr(model, "get_output_embeddings", None)
    head = get() if get is not None else None
    unchanged = type(head) is nn.Linear and "forward" not in vars(head)
    return head if unchanged and isinstance(head, nn.Linear) else None
