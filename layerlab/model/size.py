"""From what a user gives (width, heads, ...) to a whole shape."""

from layerlab import UserError
from layerlab.blocks.shape import Shape


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
    """The sizes of a model, with what was left out filled in.

    Args:
        inner: features of the feed-forward; a float is a multiple of the width, rounded up to 16.

    Raises:
        UserError: the heads do not divide the width, and no head width is given.

    Source: Own.
    """
    for name, size in {"width": width, "heads": heads}.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise UserError(f"{name} is {size!r}; expected a whole number from 1: type {name}=64")
    if head_width is None and width % heads:
        near = max(divisor for divisor in range(1, heads + 1) if width % divisor == 0)
        raise UserError(
            f"{heads} heads do not divide a width of {width}; type heads={near}, or give head_width"
        )
    wide = inner if isinstance(inner, int) else -(-int(width * inner + 0.999999) // 16) * 16
    return Shape(
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads or heads,
        head_width=head_width or width // heads,
        inner=wide,
        vocab=vocab,
        context=context,
    )
