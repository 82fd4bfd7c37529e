"""A part: what fills a slot of a block.

A part is a module class with a `name` and a `slot`. It is built with the width of what it reads,
the `Site` at which it stands, and its options. How it is called depends on the slot:

norm       part(x) -> x
attention  part(x, flow) -> (y, attention weights or None)
ffn        part(x, flow) -> y
shortcut   part(entered, raw, flow) -> y, added to the sublayer's output beside it
residual   open(x, flow) -> x, read(x, flow) -> input of the sublayer,
           write(x, y, flow) -> x, close(x, flow) -> x

`x` is always batch x token x width: what a part needs to carry besides goes through `flow.keep`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import nn

from layerlab.blocks.cost import Cost
from layerlab.blocks.shape import Site
from layerlab.blocks.spec import Spec
from layerlab.errors import UserError
from layerlab.validation import Constraint, short_repr

Slot = Literal["norm", "attention", "ffn", "shortcut", "residual"]
SLOTS: tuple[Slot, ...] = ("norm", "attention", "ffn", "shortcut", "residual")


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option that a user may set.

    Attributes:
        default: what it is when nobody does.
        domain: which values it takes.
        about: its meaning in one line.
        unsaid: whether the source leaves it open, so that the default is our reading.
        shared: whether parts of several slots have it as one: a value then holds for all of them.
    """

    default: Any
    domain: Constraint
    about: str
    unsaid: bool = False
    shared: bool = False


class Part(nn.Module):
    """A module that fills a slot.

    Attributes:
        name: as specs have it.
        slot: the slot it fills.
        options: what a user may set, by name.
        remembers: names under which it keeps tensors in the carry (a number may follow a name).
        plan: how tensor parallelism shards its matrices, by local module name; others are copied.
    """

    name: ClassVar[str]
    slot: ClassVar[Slot]
    options: ClassVar[Mapping[str, Option]] = {}
    remembers: ClassVar[tuple[str, ...]] = ()
    plan: ClassVar[Mapping[str, str]] = {}

    def forward(self, *given: Any) -> Any:
        """Call the method of a residual that is named first, with what follows.

        Weights that lie elsewhere are brought by accelerate for `forward`, and for no other.
        """
        verb, *rest = given
        return getattr(self, verb)(*rest)

    @classmethod
    def given(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return every option with its value.

        Raises:
            UserError: an option that the part does not have, or a value that it does not take.
        """
        for name, value in options.items():
            if name not in cls.options:
                names = ", ".join(cls.options) or "none"
                raise UserError(
                    f"{cls.slot} part {cls.name!r} has no option {short_repr(name)}; "
                    f"its options are: {names}"
                )
            domain = cls.options[name].domain
            if value not in domain:
                raise UserError(
                    f"option {name} of {cls.slot} part {cls.name!r} got {short_repr(value)}; "
                    f"expected {domain}: type for example {name}={cls.options[name].default!r}"
                )
        return {name: options.get(name, option.default) for name, option in cls.options.items()}

    @classmethod
    def accept(cls, spec: Spec) -> None:
        """Check that the part fits into a spec; a part that does not fit raises an error.

        Raises:
            UserError: something in the spec that it must not be combined with.
        """

    @classmethod
    def sharding(cls, **options: Any) -> Mapping[str, str]:
        """Return the plan of tensor parallelism under these options.

        A parameter between two sharded matrices would see only its process's share of the features:
        a part that then has one gathers them (colwise_gather_output, rowwise_split_input).
        """
        return cls.plan

    @classmethod
    def present(cls, site: Site, **options: Any) -> bool:
        """Return whether the slot is filled at this site at all."""
        return True

    @classmethod
    def cost(cls, width: int, site: Site, **options: Any) -> Cost | None:
        """Return what the part costs at this site; None where only a built part can be counted."""
        return None
