"""What a variant is: frozen values, to and from JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

from layerlab import UserError

Placement = Literal["pre", "post", "both", "after"]


@dataclass(frozen=True, init=False)
class Choice:
    """A part by its name, with the options that differ from its defaults."""

    name: str
    options: tuple[tuple[str, Any], ...]

    def __init__(self, name: str, **options: Any) -> None:
        object.__setattr__(self, "name", name)
        ordered = tuple((key, _frozen(options[key])) for key in sorted(options))
        object.__setattr__(self, "options", ordered)

    def given(self) -> dict[str, Any]:
        """The options as a dict."""
        return dict(self.options)

    def with_options(self, **options: Any) -> "Choice":
        """The same part with some options set anew."""
        return Choice(self.name, **{**self.given(), **options})


NONE = Choice("none")


@dataclass(frozen=True, kw_only=True)
class BlockSpec:
    """How the five slots of a block are filled.

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
class StackSpec:
    """What concerns the whole stack.

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
class Spec:
    """A whole model but for its sizes."""

    block: BlockSpec = field(default_factory=BlockSpec)
    stack: StackSpec = field(default_factory=StackSpec)

    def with_block(self, **changes: Any) -> "Spec":
        """The same spec with other slots of the block."""
        return replace(self, block=replace(self.block, **changes))

    def with_stack(self, **changes: Any) -> "Spec":
        """The same spec with another stack."""
        return replace(self, stack=replace(self.stack, **changes))

    def to_json(self) -> dict[str, Any]:
        """Plain lists, dicts, numbers and texts.

        Example:
            >>> Spec.from_json(Spec().to_json()) == Spec()
            True
        """
        return {part.name: _written(getattr(self, part.name)) for part in fields(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Spec":
        """The spec that `to_json` wrote.

        Raises:
            UserError: something that it never writes.
        """
        try:
            return cls(
                block=_read(BlockSpec, value["block"]), stack=_read(StackSpec, value["stack"])
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"not the spec of a variant: {error}; expected what Spec.to_json() gives"
            ) from error


@dataclass(frozen=True, kw_only=True)
class Variant:
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


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


def _thawed(value: Any) -> Any:
    return list(map(_thawed, value)) if isinstance(value, tuple) else value


def _written(record: Any) -> dict[str, Any]:
    written = {}
    for part in fields(record):
        value = getattr(record, part.name)
        if isinstance(value, Choice):
            options = {key: _thawed(one) for key, one in value.options}
            value = {"name": value.name, "options": options}
        written[part.name] = value
    return written


def _read(kind: type[Any], value: Mapping[str, Any]) -> Any:
    read = {}
    for name, entry in value.items():
        chosen = isinstance(entry, Mapping)
        read[name] = Choice(entry["name"], **entry["options"]) if chosen else entry
    made = kind(**read)
    for part in fields(kind):
        allowed = get_args(part.type)
        given = getattr(made, part.name)
        if allowed and given not in allowed:
            raise UserError(f"{part.name} is {given!r}; expected {' or '.join(map(repr, allowed))}")
    return made
