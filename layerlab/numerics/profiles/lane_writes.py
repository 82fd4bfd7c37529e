"""Writing in place while several runs share a tensor: each gets one of its own, and its views."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from weakref import ref

import torch
from torch import Tensor

from layerlab.numerics.emulation.emulated_tensor import EmulatedTensor
from layerlab.numerics.profiles.lane_values import change_each

LaneValues = Callable[[EmulatedTensor], Sequence[Tensor]]


def note_stream(
    found: str, given: Sequence[Tensor], outputs: Iterable[EmulatedTensor], *, kept: bool
) -> None:
    """Remember which carriers are of the residual stream, from the embedding on.

    Args:
        found: the operation; "" of what is only moved.
        kept: whether it leaves the numbers as they are.
    """
    moved = kept and any(getattr(one, "stream", False) for one in given)
    for one in outputs:
        one.stream = moved or found in ("residual", "embedding")


def note_views(source: EmulatedTensor, views: Iterable[EmulatedTensor]) -> None:
    """Remember carriers whose values lie in the memory of another's."""
    root = source if source.root is None else source.root
    for one in views:
        one.root = root
        root.views = [*(each for each in root.views if each() is not None), ref(one)]


def keep_apart(
    target: EmulatedTensor, carriers: Iterable[EmulatedTensor], values: LaneValues
) -> list[Tensor] | None:
    """Give each run that writes something else into a shared tensor one of its own.

    Runs that write the same into the same go on sharing it. Views are made anew in the copies.

    Args:
        target: what is written into.
        carriers: all arguments of the operation.
        values: gives a carrier in each run.

    Returns:
        The tensors to write into; None where a copy would lose what a view is a part of.
    """
    before = values(target)
    keys = list(zip(*(map(id, values(one)) for one in (target, *carriers)), strict=True))
    firsts = {id(there): key for there, key in reversed(list(zip(before, keys, strict=True)))}
    own = [key == firsts[id(there)] for there, key in zip(before, keys, strict=True)]
    if all(own):
        return list(before)
    root = target if target.root is None else target.root
    bases = values(root)
    if any(not one.is_contiguous() or one.storage_offset() for one in bases):
        return None
    cache: dict[tuple[int, ...], Tensor] = {}
    parted = []
    for base, key, kept in zip(bases, keys, own, strict=True):
        if key not in cache:
            cache[key] = _align(base if kept else base.clone(), bases[0].stride())
        parted.append(cache[key])
    _replace(root, parted)
    for each in root.views:
        view = each()
        if view is not None:
            _replace(view, change_each(partial(_see, view.held), parted))
    return list(values(target))


def _align(base: Tensor, strides: tuple[int, ...]) -> Tensor:
    """Give a contiguous tensor the strides of another of its shape, also where they say nothing.

    Along an axis of one entry any will do, but torch copies a view onto itself only if all agree.
    """
    return base if base.stride() == strides else base.as_strided(base.shape, strides)


def _replace(carrier: EmulatedTensor, lanes: Sequence[Tensor]) -> None:
    carrier.held, carrier.lanes = lanes[0], tuple(lanes)


def _see(view: Tensor, base: Tensor) -> Tensor:
    """Return the same part of another tensor."""
    return torch.as_strided(base, view.shape, view.stride(), view.storage_offset())
