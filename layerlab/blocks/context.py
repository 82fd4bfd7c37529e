"""State of the hidden features in one layer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from layerlab.blocks.position import rotate


@dataclass(kw_only=True)
class Flow:
    """The state of one pass through one layer.

    Attributes:
        layer: counts from 0; its place in the cache.
        carry: tensors that travel from layer to layer; each part has its own names in it.
        mask: of attention, as transformers' mask functions make it; None where plain causal.
        rotary: cosines and sines of rotary positions, or None.
        ages: how many tokens of the same document stand before each token (batch x token); only
            where a part convolves over tokens that may be padding or of several documents.
        cache: a transformers cache, or None.
        implementation: the attention that the model was set to.
        extra: what the caller passed on to the attention function.
    """

    layer: int = 0
    carry: dict[str, Tensor] = field(default_factory=dict)
    mask: Any = None
    rotary: tuple[Tensor, Tensor] | None = None
    ages: Tensor | None = None
    cache: Any = None
    implementation: str = "sdpa"
    extra: Mapping[str, Any] = field(default_factory=dict)

    def keep(self, slot: str, name: str, value: Tensor) -> None:
        """Hand a tensor on to the same slot of later layers."""
        self.carry[f"{slot}.{name}"] = value

    def kept(self, slot: str, name: str) -> Tensor | None:
        """Return what the same slot of an earlier layer handed on, or None."""
        return self.carry.get(f"{slot}.{name}")

    def take(self, slot: str, name: str) -> Tensor | None:
        """Return what was kept and drop it from the carry, as no later layer needs it; or None."""
        return self.carry.pop(f"{slot}.{name}", None)

    def to(self, device: Any, **how: Any) -> "Flow":
        """Move the carry, as accelerate asks where a part's weights lie on another device."""
        self.carry = {name: one.to(device, **how) for name, one in self.carry.items()}
        return self

    def placed(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Return the queries and keys with their positions."""
        return (query, key) if self.rotary is None else rotate(query, key, *self.rotary)
