"""Over which axes a parameter sums what it reads, and along which it writes: kept beside it."""

from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True, kw_only=True)
class Axes:
    """The axes of a parameter by what they index.

    Attributes:
        read: features that are summed over.
        written: features that come out; an axis may be both, as in a circulant matrix.
    """

    read: tuple[int, ...] = ()
    written: tuple[int, ...] = ()


def axes(module: nn.Module, **given: Axes) -> None:
    """Note the axes of the parameters that a module itself holds, where they are not the usual."""
    vars(module)["axes"] = {**getattr(module, "axes", {}), **given}


def axes_of(module: nn.Module, name: str) -> Axes:
    """Return the axes of a parameter: those that its module notes, else the usual ones.

    A matrix reads along its last axis and writes along the others; a vector stands beside the
    features, as a gain or a bias does; a row of an embedding is looked up, and nothing is summed.
    """
    noted: dict[str, Any] = getattr(module, "axes", {})
    if name in noted:
        found: Axes = noted[name]
        return found
    dimensions = getattr(module, name).dim()
    if dimensions < 2:
        return Axes(written=tuple(range(dimensions)))
    if isinstance(module, nn.Embedding):
        return Axes(written=(dimensions - 1,))
    return Axes(read=(dimensions - 1,), written=tuple(range(dimensions - 1)))
