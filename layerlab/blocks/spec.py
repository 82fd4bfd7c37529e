"""Specs of variants: frozen values, to and from JSON."""

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, TypeVar, get_args

from layerlab.errors import UserError
from layerlab.validation import Constraint, short_repr

DROPOUT = Constraint(kind=float, least=0.0, most=0.9)
Placement = Literal["pre", "post", "both", "after"]


@dataclass(frozen=True, init=False)
class Choice:
    """A part by its name, with the options that differ from its defaults."""

    name: str
    options: tuple[tuple[str, Any], ...]

    def __init__(self, name: str, **options: Any) -> None:
        object.__setattr__(self, "name", name)
        ordered = tuple((key, _freeze(options[key])) for key in sorted(options))
        object.__setattr__(self, "options", ordered)

    def given(self) -> dict[str, Any]:
        """Return the options as a dict."""
        return dict(self.options)

    def with_options(self, **options: Any) -> "Choice":
        """Return the same part with other values of some options."""
        return Choice(self.name, **{**self.given(), **options})


NONE = Choice("none")

Writable = TypeVar("Writable", bound="JsonRecord")


class JsonRecord:
    """A record that goes to JSON and comes back.

    Attributes:
        whole: whether no field may be left out there; else it takes its default.
    """

    whole: ClassVar[bool] = False

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, dicts, numbers and texts.

        Example:
            >>> Spec.from_dict(Spec().to_dict()) == Spec()
            True
        """
        return _write(self)

    @classmethod
    def from_dict(cls: type[Writable], value: Any) -> Writable:
        """Return the record that `to_dict` wrote.

        Raises:
            UserError: something that it never writes.
        """
        return cls(**_read(cls, value))


@dataclass(frozen=True, kw_only=True)
class BlockSpec(JsonRecord):
    """The parts in the five slots of a block.

    Attributes:
        placement: where the norm stands: "pre" F(N(x)) + x; "post" N(F(x) + x); "both"
            N'(F(N(x))) + x; "after" N(F(x)) + x.
    """

    norm: Choice = Choice("rms")
    attention: Choice = Choice("softmax")
    ffn: Choice = Choice("swiglu")
    shortcut: Choice = NONE
    residual: Choice = Choice("plain")
    placement: Placement = "pre"


@dataclass(frozen=True, kw_only=True)
class StackSpec(JsonRecord):
    """The options of the whole stack.

    Attributes:
        position: "rotary" in every attention, "learned" added to the embedding, or "none".
        embedding_norm: a norm right after the embedding.
        final_norm: the norm before the head.
        initialisation: "plain", or "depth-scaled": matrices that write into the stream start
            smaller by 1/sqrt(2 layers).
        sharing: "none", or "blocks": all layers share attention and feed-forward, not norms.
        head: "untied", or "tied" to the embedding.
        dropout: after the embedding and each sublayer, and on attention weights.
    """

    position: Literal["rotary", "learned", "none"] = "rotary"
    embedding_norm: Choice = NONE
    final_norm: Choice = Choice("rms")
    initialisation: Literal["plain", "depth-scaled"] = "plain"
    sharing: Literal["none", "blocks"] = "none"
    head: Literal["untied", "tied"] = "untied"
    dropout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Spec(JsonRecord):
    """A whole model but for its sizes."""

    whole = True

    block: BlockSpec = field(default_factory=BlockSpec)
    stack: StackSpec = field(default_factory=StackSpec)

    def with_block(self, **changes: Any) -> "Spec":
        """Return the same spec with other parts in slots of the block."""
        return replace(self, block=replace(self.block, **changes))

    def with_stack(self, **changes: Any) -> "Spec":
        """Return the same spec with other settings of the stack."""
        return replace(self, stack=replace(self.stack, **changes))


@dataclass(frozen=True, kw_only=True)
class Variant(JsonRecord):
    """A named spec, with what a reader must know.

    Attributes:
        equation: in plain text.
        source: key of docs/sources.md, with the place, or "Own".
        about: one or two sentences: what it is and what it is for.
        unsaid: what the source leaves open, beside the options that say so themselves.
        cost: what it costs, in words, where that needs explaining.
        baseline: the variant that it is compared with.
        inner: feed-forward width over model width, where a user gives none.
        start: how the model at step 0 relates to the baseline: "identity" (the same function),
            or "own".
    """

    name: str
    spec: Spec
    equation: str
    source: str
    about: str
    unsaid: str = ""
    cost: str = ""
    baseline: str = "llama"
    inner: float = 8 / 3
    start: Literal["identity", "own"] = "own"


def _freeze(value: Any) -> Any:
    return tuple(map(_freeze, value)) if isinstance(value, list | tuple) else value


def _thaw(value: Any) -> Any:
    return list(map(_thaw, value)) if isinstance(value, tuple) else value


def _write(record: Any) -> dict[str, Any]:
    written = {}
    for part in fields(record):
        value = getattr(record, part.name)
        if isinstance(value, Choice):
            options = {key: _thaw(one) for key, one in value.options}
            value = {"name": value.name, "options": options}
        written[part.name] = value.to_dict() if hasattr(value, "to_dict") else value
    return written


def _read(kind: type[Any], value: Any) -> dict[str, Any]:
    """Read the fields of a record that `_write` wrote."""
    declared = {one.name: one for one in fields(kind)}
    found = value if isinstance(value, Mapping) else {}
    odd = next((name for name in found if name not in declared), None)
    needed = [key for key, one in declared.items() if kind.whole or _is_required(one)]
    missing = next((key for key in needed if key not in found), None)
    if value is not found or odd is not None or missing:
        fault = (
            f"has no {missing}" if missing else f"has a field {short_repr(odd)} that there is not"
        )
        fault = fault if value is found else f"is {short_repr(value)}"
        raise UserError(
            f"what should be a {kind.__name__} {fault}; expected what {kind.__name__}.to_dict() "
            f"gives: {', '.join(declared)}"
        )
    return {name: _field(declared[name], one) for name, one in found.items()}


def _is_required(one: Field[Any]) -> bool:
    return one.default is MISSING and one.default_factory is MISSING


def _field(one: Field[Any], value: Any) -> Any:
    """Return the value of one field, checked by its type."""
    kind: Any = one.type
    if hasattr(kind, "from_dict"):
        return kind.from_dict(value)
    if kind is Choice:
        return _choose(one.name, value)
    allowed = get_args(kind)
    fits = value in allowed if allowed else isinstance(value, kind)
    expected = " or ".join(map(repr, allowed)) if allowed else f"a {kind.__name__}"
    if kind is float:
        domain = DROPOUT if one.name == "dropout" else Constraint(kind=float, above=0.0)
        fits, expected = value in domain, str(domain)
    if not fits:
        raise UserError(f"{one.name} is {short_repr(value)}; expected {expected}")
    return float(value) if kind is float else value


def _choose(option: str, value: Any) -> Choice:
    right = isinstance(value, Mapping) and set(value) == {"name", "options"}
    if right:
        name, options = value["name"], value["options"]
        right = isinstance(name, str) and isinstance(options, Mapping)
        right = right and all(isinstance(key, str) and key.isidentifier() for key in options)
        if right and not {"name", "self"} & set(options):
            return Choice(name, **options)
    raise UserError(
        f"{option} is {short_repr(value)}; expected a part with its options: "
        'type {"name": "none", "options": {}}'
    )
