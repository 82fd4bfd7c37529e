"""One operation of PyTorch as its rule sees it: what went in, what came out, what was known."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from layerlab.errors import UserError
from layerlab.numerics.emulation.emulated_tensor import EmulatedTensor, floating, leaves
from layerlab.numerics.prediction.error_state import Algebra, ErrorState


@dataclass(frozen=True)
class OpCall:
    """One operation: what it was given, and what it gave.

    Attributes:
        name: of the operation.
        run: does it, on values that are held or on spreads.
        args: its arguments with held values; what is written into, as it was before.
        spreads: the same, with spreads for values: a tensor, or None for exact ones.
        kwargs: keyword arguments, for held values.
        results: its floating results.
        twins: whether the first two arguments are one and the same.
        round_inside: returns the spread of a step inside, rounded; None where there is none.
    """

    name: str
    run: Callable[..., Any]
    args: Sequence[Any]
    spreads: Sequence[Any]
    kwargs: Mapping[str, Any]
    results: Sequence[Tensor]
    twins: bool = False
    round_inside: Callable[[Tensor, ErrorState], ErrorState] | None = None

    def value(self, index: int) -> Any:
        return self.args[index]

    def option(self, index: int, default: Any) -> Any:
        """Return a positional argument that may have been left out."""
        return self.args[index] if index < len(self.args) else default

    def spread(self, index: int) -> ErrorState:
        found = self.spreads[index] if index < len(self.spreads) else None
        return found if floating(found) else None

    def again(self, *args: Any) -> Any:
        """Run the same operation on other values."""
        return self.run(*args, **self.kwargs)

    def dense(self) -> list[Any]:
        """Return the arguments with spreads for values, zeros for exact ones."""
        return [
            _dense(value, spread) for value, spread in zip(self.args, self.spreads, strict=True)
        ]

    @property
    def exact(self) -> bool:
        return not any(floating(spread) for spread in leaves(self.spreads))


ErrorRule = Callable[[OpCall, Algebra], ErrorState | list[ErrorState]]


def zeros(like: Tensor) -> Tensor:
    """Return zeros that lie in memory as a tensor does, so that views of one fit the other."""
    size, stride = like.shape, like.stride()
    last = sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if like.numel() else -1
    return torch.zeros(last + 1, dtype=like.dtype, device=like.device).as_strided(size, stride)


def _dense(value: Any, spread: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_dense(*pair) for pair in zip(value, spread, strict=True))
    if isinstance(value, Tensor) and value.dtype.is_floating_point:
        return zeros(value) if spread is None else spread
    return value


def lacking(name: Any) -> UserError:
    """Return the error for an operation that has no rule."""
    return UserError(
        f"errors cannot be followed through {name}: no rule is known for its derivative; observe"
        " the error instead (layerlab.emulate), or write the model without it"
    )


def map_nested(value: Any, pick: Callable[[Any], Any]) -> Any:
    """Return a structure of lists and tuples with its leaves replaced."""
    if isinstance(value, (list, tuple)):
        return type(value)(map_nested(item, pick) for item in value)
    return pick(value)


def state_of(value: Any) -> Any:
    """Return the spread of a carrier, None for exact values, and anything else as it is."""
    if isinstance(value, EmulatedTensor):
        return value.spread
    if isinstance(value, Tensor) and value.dtype.is_floating_point:
        return None
    return value
