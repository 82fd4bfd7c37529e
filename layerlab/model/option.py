"""What a user sets on a spec: options of parts, of the block and of the stack, by name."""

import ast
import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import Field, fields, replace
from typing import Any, get_args

from layerlab import UserError
from layerlab.blocks.part import SLOTS, Option
from layerlab.blocks.spec import BlockSpec, Choice, Spec, StackSpec
from layerlab.domain import Domain
from layerlab.variants.inventory import part

DROPOUT = Domain(kind=float, least=0.0, most=0.9)
_PLACES = (("block", BlockSpec), ("stack", StackSpec))
# The norms of the stack: while they are as those of the layers, an option is set on all of them.
_EDGES = ("embedding_norm", "final_norm")


def with_options(spec: Spec, options: Mapping[str, Any]) -> Spec:
    """A spec with what a user set.

    A name is that of a part's option (`n=3`), with its slot before it where several have one
    (`shortcut.n=3`, or `shortcut={"n": 3}`), that of a slot, which swaps the part (`norm="layer"`),
    or that of a field of the block or the stack (`placement="post"`, `head="tied"`).

    Raises:
        UserError: an option that nothing in the spec has, or that several slots have, or a value
            that it does not take.
    """
    for name, value in options.items():
        spec = _set(spec, name, value)
    return spec


def options_of(spec: Spec, slot: Any) -> Mapping[str, Option]:
    """The options of the part that fills a slot."""
    return part(slot, getattr(spec.block, slot).name).options


def parsed(entries: Iterable[str]) -> dict[str, Any]:
    """Options as a command line has them: name=value, where value is as in Python or a bare text.

    Raises:
        UserError: an entry without a name or without a value.

    Example:
        >>> parsed(["shortcut.r=1/2", "ffn.activations=silu,gelu-tanh", "head=tied"])
        {'shortcut.r': 0.5, 'ffn.activations': ('silu', 'gelu-tanh'), 'head': 'tied'}
    """
    found = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not (name.strip() and equals and value.strip()):
            raise UserError(
                f"cannot read the option {entry!r}; expected a name and a value: "
                "type --option shortcut.bias=true"
            )
        found[name.strip()] = _value(value.strip())
    return found


def _value(text: str) -> Any:
    """What Python would read, a fraction, truth in lower case, a list with commas; else a text."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        pass
    fraction = re.fullmatch(r"(\d+)/([1-9]\d*)", text)
    if fraction:
        return int(fraction[1]) / int(fraction[2])
    if text in ("true", "false"):
        return text == "true"
    if "," in text:
        inside = text.strip("[]()")
        return tuple(_value(piece.strip()) for piece in inside.split(",") if piece.strip())
    return text


def _set(spec: Spec, name: str, value: Any) -> Spec:
    slot, _, inner = name.partition(".")
    if slot in SLOTS:
        if inner or isinstance(value, Mapping):
            return _fill(spec, slot, {inner: value} if inner else value)
        return _with(spec, slot, _choice(slot, value))
    homes = [slot for slot in SLOTS if name in options_of(spec, slot)]
    if len(homes) > 1 and all(options_of(spec, slot)[name].shared for slot in homes):
        for slot in homes:
            spec = _fill(spec, slot, {name: value})
        return spec
    if len(homes) > 1:
        raise UserError(
            f"{name} is an option of {' and '.join(homes)}; "
            f"type {homes[0]}.{name}=... (in Python: {homes[0]}={{{name!r}: ...}})"
        )
    if homes:
        return _fill(spec, homes[0], {name: value})
    for place, kind in _PLACES:
        for one in fields(kind):
            if one.name == name:
                changed = replace(getattr(spec, place), **{name: _checked(one, value)})
                return replace(spec, **{place: changed})
    raise _unknown(spec, name)


def _unknown(spec: Spec, name: str) -> UserError:
    known = sorted({one for slot in SLOTS for one in options_of(spec, slot)})
    known += [one.name for _, kind in _PLACES for one in fields(kind)]
    near = difflib.get_close_matches(name.rpartition(".")[2], known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return UserError(f"no option is called {name!r} here; {hint}known: {', '.join(known)}")


def _checked(one: Field[Any], value: Any) -> Any:
    """A value for a field of the block or the stack."""
    allowed = get_args(one.type)
    if allowed and value not in allowed:
        raise UserError(
            f"{one.name} is {value!r}; expected {' or '.join(map(repr, allowed))}: "
            f"type {one.name}={allowed[0]!r}"
        )
    if one.name == "dropout" and value not in DROPOUT:
        raise UserError(f"dropout is {value!r}; expected {DROPOUT}: type dropout=0.1")
    return _choice("norm", value) if one.name in _EDGES else value


def _fill(spec: Spec, slot: Any, options: Mapping[str, Any]) -> Spec:
    choice = getattr(spec.block, slot).with_options(**options)
    part(slot, choice.name).given(choice.given())
    return _with(spec, slot, choice)


def _with(spec: Spec, slot: Any, choice: Choice) -> Spec:
    """Another part in a slot; norms of the stack that were like those of the block stay so."""
    before = getattr(spec.block, slot)
    spec = spec.with_block(**{slot: choice})
    if slot != "norm":
        return spec
    alike = [name for name in _EDGES if getattr(spec.stack, name) == before]
    return spec.with_stack(**dict.fromkeys(alike, choice))


def _choice(slot: Any, value: Any) -> Choice:
    """A part as a user names it, looked up, with its options checked."""
    if not isinstance(value, str | Choice):
        raise UserError(
            f"{slot} is {value!r}; expected the name of a {slot} part, or a dict of its options: "
            f'type {slot}="none"'
        )
    choice = Choice(value) if isinstance(value, str) else value
    part(slot, choice.name).given(choice.given())
    return choice
