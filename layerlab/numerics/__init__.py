"""Floating point in any format, on any module: rounding, emulation, conditioning and bounds.

>>> import torch
>>> from layerlab.numerics import round_to
>>> round_to(torch.tensor([0.3]), "fp4_e2m1")
tensor([0.5000])
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layerlab.numerics.formats.formats import Block, Format, Integer, Scaled, find
    from layerlab.numerics.formats.round import round_to, rounder

__all__ = ["Block", "Format", "Integer", "Scaled", "find", "round_to", "rounder"]

_HOMES = {
    "Block": "layerlab.numerics.formats.formats",
    "Format": "layerlab.numerics.formats.formats",
    "Integer": "layerlab.numerics.formats.formats",
    "Scaled": "layerlab.numerics.formats.formats",
    "find": "layerlab.numerics.formats.formats",
    "round_to": "layerlab.numerics.formats.round",
    "rounder": "layerlab.numerics.formats.round",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'layerlab.numerics' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
