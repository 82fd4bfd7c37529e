"""Card of a variant, in one value: equation, source, options, sizes, cost."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from layerlab.blocks.part import SLOTS, Slot
from layerlab.blocks.shape import Shape
from layerlab.blocks.spec import BlockSpec, StackSpec
from layerlab.model.cost.cost import Account, account
from layerlab.model.design import Design, design
from layerlab.model.listing.diagram import picture
from layerlab.model.option import options_of
from layerlab.model.preset import Preset
from layerlab.records.json_values import json_values
from layerlab.variants.registry import home, variants

__all__ = ["Card", "Setting", "card", "list_variants"]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """An option of a variant as it stands.

    Attributes:
        slot: whose it is.
        value: what the variant, or the user, gives it; else the part's default.
        domain: which values it takes, in words.
        unsaid: whether the source leaves it open, so that the value is our reading.
    """

    slot: Slot
    name: str
    value: Any
    domain: str
    about: str
    unsaid: bool


@dataclass(frozen=True, kw_only=True, repr=False)
class Card:
    """A variant at a size; its text is a page for a reader.

    Attributes:
        parts: the name of the part in each slot, and of each field of block and stack.
        cost: in words, where it needs explaining.
        home: the file that declares it.
        against: the account of the baseline at the same sizes.
        preset: whose shape it is shown at, where that has a name.
    """

    name: str
    equation: str
    source: str
    about: str
    unsaid: str
    cost: str
    baseline: str
    start: str
    home: str
    parts: Mapping[str, str]
    settings: tuple[Setting, ...]
    shape: Shape
    account: Account
    against: Account
    picture: str
    preset: Preset | None = None

    @property
    def parameters(self) -> int:
        """Return the number of all parameters at this size."""
        return self.account.parameters

    @property
    def flops(self) -> int:
        """Return the FLOPs of one token's forward pass in a full context."""
        return self.account.forward

    @property
    def extra(self) -> dict[str, float]:
        """Return the cost beyond that of the baseline, in percent of it."""
        own, other = self.account, self.against
        return {
            "parameters": 100 * (own.parameters - other.parameters) / other.parameters,
            "flops": 100 * (own.forward - other.forward) / other.forward,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, dicts, numbers and texts."""
        preset = self.preset and {
            key: getattr(self.preset, key) for key in ("name", "source", "published", "unsaid")
        }
        return {
            **{key: getattr(self, key) for key in _TEXTS},
            "parts": dict(self.parts),
            "options": [{**vars(one), "value": json_values(one.value)} for one in self.settings],
            "sizes": vars(self.shape),
            "account": _counts(self.account),
            "baseline_account": _counts(self.against),
            "extra_percent": self.extra,
            "picture": self.picture,
            "preset": preset,
        }

    def __repr__(self) -> str:
        return (
            f"Card({self.name!r}: {self.equation}; {self.source}; "
            f"{self.parameters:,} parameters and {self.flops:,} FLOPs per token at "
            f"width {self.shape.width}, {self.shape.layers} layers)"
        )


_TEXTS = (
    "name",
    "equation",
    "source",
    "about",
    "unsaid",
    "cost",
    "baseline",
    "start",
    "home",
)


def list_variants() -> dict[str, Card]:
    """List every variant that can be built, by its name, at the size that `build` starts from.

    Example:
        >>> list_variants()["llama"].source
        'touvron23, section 2.2'
    """
    return {name: card(design(name)) for name in variants()}


def card(found: Design) -> Card:
    """Return the card of a design."""
    kind = found.variant
    return Card(
        **{key: getattr(kind, key) for key in _TEXTS if key != "home"},
        home=home(kind.name),
        parts=_parts(found),
        settings=_settings(found),
        shape=found.shape,
        account=_account(found),
        against=_account(design(kind.baseline, sizes=found.asked)),
        picture=picture(found.spec, found.shape),
        preset=found.preset,
    )


def _account(found: Design) -> Account:
    return account(found.spec, found.shape)


def _parts(found: Design) -> dict[str, str]:
    block, stack = found.spec.block, found.spec.stack
    fields = {**{key: getattr(block, key) for key in BlockSpec.__dataclass_fields__}}
    fields |= {key: getattr(stack, key) for key in StackSpec.__dataclass_fields__}
    return {key: str(getattr(value, "name", value)) for key, value in fields.items()}


def _settings(found: Design) -> tuple[Setting, ...]:
    given = {slot: getattr(found.spec.block, slot).given() for slot in SLOTS}
    return tuple(
        Setting(
            slot=slot,
            name=name,
            value=given[slot].get(name, option.default),
            domain=str(option.domain),
            about=option.about,
            unsaid=option.unsaid,
        )
        for slot in SLOTS
        for name, option in options_of(found.spec, slot).items()
    )


def _counts(cost: Account) -> dict[str, Any]:
    return {**vars(cost), "parameters": cost.parameters, "backward": cost.backward}
