"""Designs that a user asked for: a variant or a preset, sizes, options, checked."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from layerlab.blocks.shape import Shape
from layerlab.blocks.spec import Spec, Variant
from layerlab.errors import UserError
from layerlab.known_names import unknown_variant
from layerlab.model.option import with_options
from layerlab.model.parametrization import Base
from layerlab.model.preset import Preset, preset_of, presets, sizes_of
from layerlab.model.size import check_limit, shape
from layerlab.validation import short_repr
from layerlab.variants.registry import home, variant, variants

SIZES = ("width", "layers", "heads", "vocab", "context", "inner", "kv_heads", "head_width")


@dataclass(frozen=True, kw_only=True)
class Design:
    """A variant at a size, with a user's options: all that a model needs but its seed.

    Attributes:
        preset: whose sizes these are, where one was named.
        asked: the sizes that a preset or the user named; the others are the variant's own.
        base: from which muP scales the model; None: the standard parametrization.
    """

    variant: Variant
    spec: Spec
    shape: Shape
    preset: Preset | None = None
    asked: Mapping[str, Any] = field(default_factory=dict)
    base: Base | None = None


def design(
    name: Any,
    *,
    preset: Any = None,
    sizes: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Design:
    """Turn names, sizes and options into a design.

    Args:
        name: a variant, or a preset, which stands for its variant at its sizes.
        preset: whose sizes a variant takes.
        sizes: those that are None are left to the preset, else to the reference size.

    Raises:
        UserError: an unknown name or option, or sizes that do not fit together.
    """
    chosen, kind = find_model(name)
    if preset is not None:
        chosen = preset_of(preset)
    given = {key: size for key, size in (sizes or {}).items() if size is not None}
    asked = {**sizes_of(chosen), **given}
    wanted = {"inner": kind.inner, **asked}
    for key, size in wanted.items():
        check_limit(key, size)
    preset_options = chosen.options if chosen and chosen.variant == kind.name else {}
    spec = with_options(kind.spec, {**preset_options, **(options or {})})
    found = shape(**wanted)
    if spec.stack.position == "rotary" and found.head_width % 2:
        raise UserError(
            f"rotary positions turn features in pairs, and a head width of {found.head_width} is "
            f"odd; type head_width={found.head_width + 1}, or other heads"
        )
    return Design(variant=kind, spec=spec, shape=found, preset=chosen, asked=asked)


def with_base(found: Design, width: int, head_width: int | None = None) -> Design:
    """Return a design that muP scales from a base width.

    Args:
        head_width: of a head there; where it is left out, that of the same design at that width:
            where nobody gave the head width, as many heads share the smaller width.

    Raises:
        UserError: heads do not fit into the base width.
    """
    heads = found.shape.heads
    own = "head_width" in found.asked
    if head_width is None and not own and width % heads:
        raise UserError(
            f"train.mup_base_width is {width}, which the model's {heads} heads do not divide; "
            f"write mup_base_width = {_multiple(width, heads)}, or give mup_base_head_width"
        )
    head_width = head_width or (found.shape.head_width if own else width // heads)
    if width % head_width:
        raise UserError(
            f"train.mup_base_width is {width}, no multiple of a head's width there, {head_width}; "
            f"write mup_base_width = {_multiple(width, head_width)}, or another "
            "mup_base_head_width"
        )
    return replace(found, base=Base(width=width, head_width=head_width))


def _multiple(width: int, of: int) -> int:
    return max(1, round(width / of)) * of


def find_model(name: Any) -> tuple[Preset | None, Variant]:
    """Find what a name stands for: a variant, or a preset with its variant.

    Raises:
        UserError: nothing has this name.
    """
    if not isinstance(name, str):
        raise UserError(
            f"the variant is a {type(name).__name__}; expected the name of a variant or a preset: "
            'type build("llama")'
        )
    chosen = presets().get(name)
    if chosen is not None and name in variants():
        raise UserError(
            f"{name!r} is a preset, and {home(name)} has a variant of this name; "
            "give the variant another name"
        )
    if chosen is not None:
        return chosen, variant(chosen.variant)
    if name not in variants():
        raise unknown_variant(name, variants(), presets())
    return None, variant(name)


def seed_of(value: Any) -> int:
    """Check a seed and return it.

    Raises:
        UserError: it is no whole number.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise UserError(
            f"seed is {short_repr(value)}; expected a whole number as a seed: type seed=0"
        )
    return value
