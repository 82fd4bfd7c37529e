"""A block as text, drawn from its spec: norms, shortcut and residual where they really stand."""

from dataclasses import dataclass
from typing import Any

from layerlab.blocks.layer import ROLES
from layerlab.blocks.part import Slot
from layerlab.blocks.shape import Role, Shape, Site
from layerlab.blocks.spec import Choice, Spec
from layerlab.variants.registry import part

_RAIL = "  │ "
_NONE = Choice("none")


@dataclass(frozen=True)
class _Branch:
    """A sublayer: the norm before it, then what stands side by side up to where it comes back."""

    lead: str
    beside: list[str]

    @property
    def width(self) -> int:
        return len(self.lead) + max(map(len, self.beside))

    def render(self, width: int) -> list[str]:
        room = width - len(self.lead)
        first, *rest = [text.ljust(room, "─") for text in self.beside]
        if not rest:
            return [f"  ├─{self.lead}──{first}─╮"]
        blank = " " * len(self.lead)
        lines = [f"  ├─{self.lead}┬─{first}─╮"]
        lines += [f"  │ {blank}╰─{text}─┤" for text in rest]
        return lines


def picture(spec: Spec, shape: Shape) -> str:
    """Draw the way of a token's features from the embedding to the logits.

    The rail at the left is the residual stream; a branch leaves it at ├ and comes back at the
    residual, which is named with its options. A layer in the middle is drawn.
    """
    site = Site(shape=shape, layer=min(1, shape.layers - 1))
    stack = spec.stack
    shared = "; attention and ffn are the same in all" if stack.sharing == "blocks" else ""
    found = [_branch(spec, site.at(role), role) for role in ROLES]
    branches = [one for one in found if one is not None]
    width = max((one.width for one in branches), default=0)
    lines = ["tokens", _RAIL + _embedding(spec), *_on_rail(stack.embedding_norm, "embedding")]
    lines.append(f"{_RAIL}╭── {shape.layers} layers{shared}")
    for branch in branches:
        lines += branch.render(width)
        lines.append(_back(spec.block.residual, width))
        if spec.block.placement == "post":
            lines += _on_rail(spec.block.norm, "of the stream")
    lines.append(f"{_RAIL}╰──")
    return "\n".join([*lines, *_on_rail(stack.final_norm, "final"), *_end(stack.head)])


def _embedding(spec: Spec) -> str:
    stack = spec.stack
    learned = " + learned positions" if stack.position == "learned" else ""
    dropout = f", dropout {stack.dropout:g} here and after each sublayer" if stack.dropout else ""
    return f"embedding{learned}{dropout}"


def _end(head: str) -> list[str]:
    return [f"{_RAIL}head, {'tied to the embedding' if head == 'tied' else head}", "logits"]


def _on_rail(norm: Choice, where: str) -> list[str]:
    return [] if norm == _NONE else [f"{_RAIL}norm {_describe('norm', norm)}, {where}"]


def _branch(spec: Spec, site: Site, role: Role) -> _Branch | None:
    block = spec.block
    slot: Slot = "attention" if role == "attention" else "ffn"
    choice: Choice = getattr(block, role)
    if not _there(slot, choice, site):
        return None
    norm = "" if block.norm == _NONE else f"norm {_describe('norm', block.norm)}"
    lead = f" {norm} ─" if norm and block.placement in ("pre", "both") else ""
    after = f"─ {norm} " if norm and block.placement in ("both", "after") else ""
    rotary = ", rotary positions" if role == "attention" and spec.stack.position == "rotary" else ""
    beside = [f" {role}: {_describe(slot, choice)}{rotary} {after}"]
    if _there("shortcut", block.shortcut, site):
        beside.append(f" shortcut: {_describe('shortcut', block.shortcut)} ")
    return _Branch(lead, beside)


def _back(residual: Choice, width: int) -> str:
    mark = {"plain": "⊕", "none": "◀"}.get(residual.name, "⊞")
    label = "none, nothing is skipped" if residual == _NONE else _describe("residual", residual)
    return f"  {mark}{'─' * (width + 4)}╯ residual: {label}"


def _there(slot: Slot, choice: Choice, site: Site) -> bool:
    kind = part(slot, choice.name)
    return kind.present(site, **kind.given(choice.given()))


def _describe(slot: Slot, choice: Choice) -> str:
    """Describe a part with the options that differ from its defaults."""
    kind = part(slot, choice.name)
    differs = {
        name: value
        for name, value in choice.given().items()
        if name in kind.options and value != kind.options[name].default
    }
    listed = ", ".join(f"{name}={_value(value)}" for name, value in differs.items())
    return f"{choice.name}({listed})" if listed else choice.name


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + " ".join(map(_value, value)) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)
