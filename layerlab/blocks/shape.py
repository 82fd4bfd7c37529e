"""Sizes of a stack, and the position of a part in it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from layerlab.errors import UserError
from layerlab.validation import short_repr

Role = Literal["attention", "ffn", "stack"]


def check_size(name: str, size: Any) -> None:
    """Check that a size is a whole number from 1.

    Raises:
        UserError: it is something else.
    """
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise UserError(
            f"{name} is {short_repr(size)}; expected a whole number from 1: type {name}=64"
        )


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes that all variants of a comparison share; see the axis legend in `shapes`.

    Raises:
        UserError: sizes that do not fit together.
    """

    width: int
    layers: int
    heads: int
    kv_heads: int
    head_width: int
    inner: int
    vocab: int
    context: int

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            check_size(name, size)
        if self.heads % self.kv_heads:
            raise UserError(
                f"{self.heads} heads cannot share {self.kv_heads} key-value heads evenly; "
                f"type kv_heads={self.heads}, or another divisor of {self.heads}"
            )


@dataclass(frozen=True, kw_only=True)
class Site:
    """The position of a part in the stack.

    Attributes:
        layer: counts from 0; -1 for what concerns the whole stack.
        sublayers: of a layer: attention and feed-forward, or attention alone.
        role: the sublayer that the part serves.
        attend: softmax attention over heads, as transformers' attention interface has it.
        score_factor: on attention scores, beside what an attention has itself for its head width.
    """

    shape: Shape
    layer: int = -1
    sublayers: int = 2
    role: Role = "stack"
    attend: Callable[..., Any] | None = None
    score_factor: float = 1.0

    @property
    def first(self) -> bool:
        """Return whether this is the first layer."""
        return self.layer == 0

    def at(self, role: Role) -> "Site":
        """Return the site of another sublayer of the same layer."""
        return replace(self, role=role)
