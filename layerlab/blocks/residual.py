"""Residual connection of a sublayer, and the shortcut beside it."""

from typing import Any

from layerlab.blocks.context import Flow
from layerlab.blocks.cost import Cost
from layerlab.blocks.part import Part
from layerlab.blocks.shape import Site
from layerlab.shapes import Stream


class Residual(Part):
    """x + F(x), in four verbs that a variant overrides.

    Source: he16, equation 1.
    """

    name = "plain"
    slot = "residual"

    def __init__(self, width: int, site: Site) -> None:
        super().__init__()

    def open(self, x: Stream, flow: Flow) -> Stream:
        """Turn the embedding into the stream, once per pass."""
        return x

    def read(self, x: Stream, flow: Flow) -> Stream:
        """Return what a sublayer gets to see."""
        return x

    def write(self, x: Stream, y: Stream, flow: Flow) -> Stream:
        """Return the stream after a sublayer gave y."""
        return x + y

    def close(self, x: Stream, flow: Flow) -> Stream:
        """Turn the stream into what the final norm sees, once per pass."""
        return x

    @classmethod
    def cost(cls, width: int, site: Site, **options: Any) -> Cost:
        return Cost(pointwise=0 if site.role == "stack" else width)


class NoResidual(Residual):
    """F(x) alone: nothing is skipped.

    Source: dong21, section 2.
    """

    name = "none"

    def write(self, x: Stream, y: Stream, flow: Flow) -> Stream:
        return y

    @classmethod
    def cost(cls, width: int, site: Site, **options: Any) -> Cost:
        return Cost()


class NoShortcut(Part):
    """No shortcut beside the plain one."""

    name = "none"
    slot = "shortcut"

    @classmethod
    def present(cls, site: Site, **options: Any) -> bool:
        return False


PARTS = (Residual, NoResidual, NoShortcut)
