"""Parts and tensor-parallel plan of a spec, without a model."""

from layerlab.blocks.part import SLOTS, Part, Slot
from layerlab.blocks.spec import Spec
from layerlab.variants.registry import part


def choose_parts(spec: Spec) -> list[tuple[type[Part], dict[str, object]]]:
    """Choose the part of each slot with all its options.

    Raises:
        UserError: no such part, an option that it does not take, or a spec it cannot stand in.
    """
    found = []
    for slot in SLOTS:
        choice = getattr(spec.block, slot)
        kind = part(slot, choice.name)
        kind.accept(spec)
        found.append((kind, kind.given(choice.given())))
    return found


def tensor_plan(spec: Spec) -> dict[str, str]:
    """Return how tensor parallelism shards the matrices of each layer."""
    places: dict[Slot, tuple[str, ...]] = {"attention": ("attention",), "ffn": ("ffn",)}
    return {
        f"layers.*.{module}.{name}": how
        for kind, options in choose_parts(spec)
        for module in places.get(kind.slot, ())
        for name, how in kind.sharding(**options).items()
    }
