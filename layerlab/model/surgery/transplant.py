"""Changes of a variant from its baseline, carried over to another spec."""

from dataclasses import fields
from typing import Any

from layerlab.blocks.part import SLOTS, Slot
from layerlab.blocks.spec import BlockSpec, Choice, Spec, StackSpec, Variant
from layerlab.errors import UserError
from layerlab.variants.registry import part, variant, variants

REFERENCES = ("llama", "gpt2", "gpt1")  # whole models, not changes of one


def graft(spec: Spec, idea: Variant, *, kind: str) -> Spec:
    """Return the spec of a model with all that a variant changes of the ancestor that both share.

    A part that stands in for another takes over what both can be told: biases, activation, the
    epsilon of a norm, and, where it has an option `body`, the kind of feed-forward it is put on.

    Args:
        kind: the variant that the model is; the one that it is already leaves it as it is.

    Raises:
        UserError: a slot is already filled by something else than the baseline's part, or the
            variant is a whole model of another kind, or changes nothing.
    """
    if idea.name == kind:
        return spec
    if _whole(idea, kind):
        raise UserError(
            f"a {kind} model cannot be rebuilt as {idea.name}: expected a variant of {kind}; "
            "type layerlab variants"
        )
    before, base = spec, variant(root(idea, kind)).spec
    for slot in SLOTS:
        old, new = getattr(base.block, slot), getattr(idea.spec.block, slot)
        if old != new:
            spec = spec.with_block(**{slot: _standing_in(slot, getattr(spec.block, slot), new)})
    for name, value in _change(BlockSpec, base.block, idea.spec.block):
        spec = spec.with_block(**{name: value})
    for name, value in _change(StackSpec, base.stack, idea.spec.stack):
        spec = spec.with_stack(**{name: value})
    if spec == before:
        raise UserError(
            f"{idea.name} changes nothing of a {kind} model: what sets it apart from "
            f"{root(idea, kind)} is there already; type layerlab variants for others"
        )
    return spec


def describe_carried(idea: str, kind: str) -> str:
    """Describe what is carried over of a variant that is not of the model's kind; else ""."""
    found = variants().get(idea)
    if found is None or kind in _line(idea):
        return ""
    base = variant(root(found, kind))
    places: list[str] = [
        slot for slot in SLOTS if getattr(base.spec.block, slot) != getattr(found.spec.block, slot)
    ]
    places += [name for name, _ in _change(BlockSpec, base.spec.block, found.spec.block)]
    places += [name for name, _ in _change(StackSpec, base.spec.stack, found.spec.stack)]
    return (
        f"only what {idea} changes of {base.name} is carried over ({', '.join(places)}); "
        f"all else stays as in {kind}"
    )


def root(idea: Variant, kind: str) -> str:
    """Return the nearest common ancestor of a kind and an idea, else the idea's baseline."""
    line = _line(idea.name)
    return next((name for name in _line(kind) if name in line), idea.baseline)


def _line(name: str) -> list[str]:
    """Return a variant, its baseline, the baseline of that, and so on."""
    known, found = variants(), [name]
    while found[-1] in known and known[found[-1]].baseline not in found:
        found.append(known[found[-1]].baseline)
    return found


def _whole(idea: Variant, kind: str) -> bool:
    """Return whether a variant is itself what others change, and changes no model of this kind."""
    reference = idea.name in REFERENCES or idea.baseline == idea.name
    return idea.name in _line(kind) or (reference and kind not in _line(idea.name))


def _change(kind: type[Any], old: Any, new: Any) -> list[tuple[str, Any]]:
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
    options = part(slot, new.name).options
    taken = {name: value for name, value in present.given().items() if name in options}
    if "body" in options and present.name in options["body"].domain:
        taken["body"] = present.name
    activation = present.given().get("activation")
    if activation and "activations" in options:
        taken["activations"] = activation
    return Choice(new.name, **{**taken, **new.given()})
