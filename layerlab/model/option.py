"""Options that a user sets on a spec: of parts, of the block and of the stack, by name."""

from collections.abc import Mapping
from dataclasses import Field, fields, replace
from typing import Any, get_args

from layerlab.blocks.part import SLOTS, Option
from layerlab.blocks.shape import Shape
from layerlab.blocks.spec import DROPOUT, BlockSpec, Choice, Spec, StackSpec
from layerlab.errors import UserError
from layerlab.validation import short_repr, suggest
from layerlab.variants.registry import part

_PLACES = {"block": BlockSpec, "stack": StackSpec}
# The norms of the stack: while they are as those of the layers, an option is set on all of them.
_EDGES = ("embedding_norm", "final_norm")


def with_options(spec: Spec, options: Mapping[str, Any]) -> Spec:
    """Return a spec with what a user set.

    A name is that of a part's option (`n=3`), with its slot before it where several have one
    (`shortcut.n=3`, or `shortcut={"n": 3}`), that of a slot, which swaps the part (`norm="layer"`),
    or that of a field of the block or the stack (`placement="post"`, `head="tied"`), with its place
    before it where a part has it too (`stack.position="none"`, or `stack={"position": "none"}`).
    In which order they are given makes no difference.

    Raises:
        UserError: an option that nothing in the spec has, or that several slots have, or a value
            that it does not take.
    """
    wanted = _spelt(options)
    swapped = [slot for slot in SLOTS if slot in wanted]
    for slot in swapped:
        spec = _with(spec, slot, _choice(slot, slot, wanted.pop(slot)))
    of_parts: dict[str, dict[str, Any]] = {}
    of_stack = {}
    for name, value in wanted.items():
        homes = _homes(spec, name, value)
        for home, inner in homes:
            of_parts.setdefault(home, {})[inner] = value
        if not homes:
            of_stack[name] = value
    for home, given in of_parts.items():  # at once: one option may need another
        spec = _fill(spec, home, given)
    for name, value in of_stack.items():  # last: norms of the stack follow those of the layers
        spec = _field(spec, name, value)
    return spec


def options_of(spec: Spec, slot: Any) -> Mapping[str, Option]:
    """Return the options of the part that fills a slot."""
    return part(slot, getattr(spec.block, slot).name).options


def _spelt(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return every option under its own name: dicts of a slot, block or stack are opened."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        if isinstance(value, Mapping) and name in SLOTS and "name" in value:
            raise UserError(
                f"{name} got a dict with a name in it, and a dict holds options of the part that "
                f"is there; another part is chosen by its name: type {name}={value['name']!r}"
            )
        if isinstance(value, Mapping) and name in (*SLOTS, *_PLACES):
            found |= _spelt({f"{name}.{inner}": one for inner, one in value.items()})
        else:
            prefix, _, inner = name.partition(".")
            slot = prefix == "block" and inner.partition(".")[0] in SLOTS
            found |= _spelt({inner: value}) if slot else {name: value}
    return found


def _homes(spec: Spec, name: str, value: Any) -> list[tuple[str, str]]:
    """Return the slots whose part has an option, with its name there; empty if no part has it.

    Raises:
        UserError: several slots have it, or one and the stack, and the value does not say which.
    """
    slot, _, inner = name.partition(".")
    if slot in SLOTS:
        return [(slot, inner)]
    if slot in _PLACES and inner:
        return []
    homes = [slot for slot in SLOTS if name in options_of(spec, slot)]
    if len(homes) > 1 and all(options_of(spec, slot)[name].shared for slot in homes):
        return [(slot, name) for slot in homes]
    places = [home for home, kind in _PLACES.items() if name in _plain_fields(kind)]
    alone = len(homes) == 1 and not (
        places and value not in options_of(spec, homes[0])[name].domain
    )
    if homes and not alone:
        every = [*homes, *places]
        raise UserError(
            f"{name} is an option of {' and '.join(every)}; "
            f"type {' or '.join(f'{one}.{name}=...' for one in every)} "
            f"(in Python: {every[-1]}={{{name!r}: ...}})"
        )
    return [(slot, name) for slot in homes]


def _field(spec: Spec, name: str, value: Any) -> Spec:
    """Return the spec with another value in a field of its block or stack."""
    prefix, _, inner = name.partition(".")
    for home, kind in _PLACES.items():
        wanted = inner if prefix == home else name
        if wanted in _plain_fields(kind):
            changed = _check(_plain_fields(kind)[wanted], value)
            return replace(spec, **{home: replace(getattr(spec, home), **{wanted: changed})})
    if name in _PLACES:
        raise UserError(
            f"{name} is {short_repr(value)}; expected a dict of its fields: "
            f"type stack={{'position': 'none'}}, or on the command line --option "
            "stack.position=none"
        )
    raise _unknown(spec, name)


def _plain_fields(kind: Any) -> dict[str, Field[Any]]:
    return {one.name: one for one in fields(kind) if one.name not in SLOTS}


def _unknown(spec: Spec, name: str) -> UserError:
    known = [one.name for one in fields(Shape)]
    known += sorted({one for slot in SLOTS for one in options_of(spec, slot)})
    known += [one.name for kind in _PLACES.values() for one in fields(kind)]
    hint = suggest(name.rpartition(".")[2], known)
    names = ", ".join(dict.fromkeys(known))
    return UserError(f"no option or size is called {short_repr(name)} here; {hint}known: {names}")


def _check(one: Field[Any], value: Any) -> Any:
    """Check a value for a field of the block or the stack."""
    allowed = get_args(one.type)
    if allowed and value not in allowed:
        raise UserError(
            f"{one.name} is {short_repr(value)}; expected {' or '.join(map(repr, allowed))}: "
            f"type {one.name}={allowed[0]!r}"
        )
    if one.name == "dropout" and value not in DROPOUT:
        raise UserError(f"dropout is {short_repr(value)}; expected {DROPOUT}: type dropout=0.1")
    return _choice("norm", one.name, value) if one.name in _EDGES else value


def _fill(spec: Spec, slot: Any, options: Mapping[str, Any]) -> Spec:
    before = getattr(spec.block, slot)
    part(slot, before.name).given({**before.given(), **options})
    return _with(spec, slot, before.with_options(**options))


def _with(spec: Spec, slot: Any, choice: Choice) -> Spec:
    """Return a spec with another part in a slot.

    Norms of the stack that were like those of the block stay so.
    """
    before = getattr(spec.block, slot)
    spec = spec.with_block(**{slot: choice})
    if slot != "norm":
        return spec
    alike = [name for name in _EDGES if getattr(spec.stack, name) == before]
    return spec.with_stack(**dict.fromkeys(alike, choice))


def _choice(slot: Any, name: str, value: Any) -> Choice:
    """Return a part that a user named, looked up, with its options checked."""
    if not isinstance(value, str | Choice):
        raise UserError(
            f"{name} is {short_repr(value)}; expected the name of a {slot} part, or a dict of its "
            f"options: type {name}={getattr(BlockSpec(), slot).name!r}"
        )
    choice = Choice(value) if isinstance(value, str) else value
    part(slot, choice.name).given(choice.given())
    return choice
