"""What a variant changes of its baseline, carried over to another spec."""

from dataclasses import fields
from typing import Any

from layerlab import UserError
from layerlab.blocks.part import SLOTS, Slot
from layerlab.blocks.spec import BlockSpec, Choice, Spec, StackSpec, Variant
from layerlab.variants.inventory import part, variant


def grafted(spec: Spec, idea: Variant) -> Spec:
    """The spec with every slot that the variant fills otherwise than its baseline.

    A part that stands in for another takes over what both can be told: biases, activation, the
    epsilon of a norm, and, where it has an option `body`, the kind of feed-forward it is put on.

    Source: Own.

    Raises:
        UserError: the slot is already filled by something else than the baseline's part.
    """
    base = variant(idea.baseline).spec
    for slot in SLOTS:
        old, new = getattr(base.block, slot), getattr(idea.spec.block, slot)
        if old != new:
            spec = spec.with_block(**{slot: _standing_in(slot, getattr(spec.block, slot), new)})
    for name, value in _changed(BlockSpec, base.block, idea.spec.block):
        spec = spec.with_block(**{name: value})
    for name, value in _changed(StackSpec, base.stack, idea.spec.stack):
        spec = spec.with_stack(**{name: value})
    return spec


def _changed(kind: type[Any], old: Any, new: Any) -> list[tuple[str, Any]]:
    names = [one.name for one in fields(kind) if one.name not in SLOTS]
    return [
        (name, getattr(new, name)) for name in names if getattr(old, name) != getattr(new, name)
    ]


def _standing_in(slot: Slot, present: Choice, new: Choice) -> Choice:
    plain = {"attention": ("softmax",), "ffn": ("swiglu", "mlp"), "norm": ("rms", "layer")}
    allowed = (*plain.get(slot, ("none", "plain")), new.name)
    if present.name not in allowed:
        raise UserError(
            f"the {slot} slot of this model holds {present.name!r} already, and the variant would "
            f"put {new.name!r} there; expected {' or '.join(allowed[:-1])}"
        )
    known = part(slot, new.name).options
    taken = {name: value for name, value in present.given().items() if name in known}
    if "body" in known and present.name in known["body"].domain:
        taken["body"] = present.name
    activation = present.given().get("activation")
    if activation and "activations" in known:
        taken["activations"] = activation
    return Choice(new.name, **{**taken, **new.given()})
