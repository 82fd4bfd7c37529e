"""From what a user gives (width, heads, ...) to a whole shape."""

import math
from typing import Any

from layerlab.blocks.shape import Shape, check_size
from layerlab.errors import UserError
from layerlab.validation import short_repr

# Where nobody says otherwise: the size of the benchmarks.
REFERENCE = {"width": 256, "layers": 6, "heads": 4, "vocab": 8192, "context": 256}
# As deep as any model was trained (and every layer is accounted for by itself), else far beyond
# every model, and so small that no product of them leaves 64 bits.
MOST = {"layers": 1000, "inner": 2**24, "vocab": 2**24, "context": 2**24}
LARGEST = 2**20  # of the others


def shape(
    *,
    width: int,
    layers: int,
    heads: int,
    vocab: int,
    context: int,
    inner: int | float,
    kv_heads: int | None = None,
    head_width: int | None = None,
) -> Shape:
    """Return the sizes of a model, with what was left out filled in.

    Args:
        inner: features of the feed-forward; a float is a multiple of the width, rounded up to 16.

    Raises:
        UserError: the heads do not divide the width, and no head width is given.
    """
    for name, size in {"width": width, "heads": heads}.items():
        check_size(name, size)
    if head_width is None and width % heads:
        near = max(divisor for divisor in range(1, heads + 1) if width % divisor == 0)
        raise UserError(
            f"{heads} heads do not divide a width of {width}; type heads={near}, or give head_width"
        )
    return Shape(
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=heads if kv_heads is None else kv_heads,
        head_width=width // heads if head_width is None else head_width,
        inner=_inner(width, inner),
        vocab=vocab,
        context=context,
    )


def check_limit(name: str, size: Any) -> None:
    """Check that a size is a whole number from 1, and not larger than that of any model.

    Raises:
        UserError: it is something else.
    """
    if name == "inner" and isinstance(size, float):
        return
    check_size(name, size)
    most = MOST.get(name, LARGEST)
    if size > most:
        raise UserError(
            f"{name} is {short_repr(size)}, more than any model has; expected at most {most}: "
            f"type {name}=64"
        )


def _inner(width: int, inner: Any) -> int:
    if isinstance(inner, float):
        if not (math.isfinite(inner) and 0 < inner <= 1024):
            raise UserError(
                f"inner is {inner!r}; expected a whole number of features, or a multiple of the "
                "width above 0: type inner=2.5"
            )
        return -(-int(max(width * inner, 1) + 0.999999) // 16) * 16
    return inner
