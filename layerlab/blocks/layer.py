"""One layer: attention and feed-forward, each with its norm, shortcut and residual."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import nn

from layerlab.blocks.context import Flow
from layerlab.blocks.cost import Cost
from layerlab.blocks.dropout import Dropout
from layerlab.blocks.operations.convolution import CausalConvolution
from layerlab.blocks.operations.recompute import write_gradient
from layerlab.blocks.part import Part, Slot
from layerlab.blocks.shape import Role, Shape, Site
from layerlab.blocks.spec import BlockSpec, Choice
from layerlab.errors import UserError
from layerlab.shapes import Stream

Find = Callable[[Slot, str], type[Part]]
ROLES: tuple[Literal["attention", "ffn"], ...] = ("attention", "ffn")


def make_part(find: Find, slot: Slot, choice: Choice, width: int, site: Site) -> Any:
    """Build the chosen part; None where its slot stays empty at this site.

    Raises:
        UserError: no such part, or an option that it does not take.
    """
    kind = find(slot, choice.name)
    options = kind.given(choice.given())
    return kind(width, site, **options) if kind.present(site, **options) else None


class DecoderLayer(nn.Module):
    """Attention, then feed-forward.

    Its parts are called `attention`, `attention_norm`, `attention_shortcut`, `attention_residual`
    and so on, in every variant, so that what two variants share has one name.
    """

    def __init__(self, block: BlockSpec, site: Site, find: Find, dropout: float = 0.0) -> None:
        super().__init__()
        width = site.shape.width
        self.number = site.layer
        self.placement = block.placement
        self.dropout = dropout
        self.roles: list[Role] = []
        for role in ROLES:
            here = site.at(role)
            sublayer = make_part(find, role, getattr(block, role), width, here)
            if sublayer is None:
                continue
            self.roles.append(role)
            self.add_module(role, sublayer)
            for name, slot, choice in self._companions(block, role):
                part = make_part(find, slot, choice, width, here)
                if part is not None:
                    self.add_module(name, part)
        if "attention" in self.roles:
            attention: Any = self.attention
            attention.dropout = dropout
        for filled in self.roles if dropout else ():
            site_name = f"layers.{site.layer}.{filled}"
            self.add_module(f"{filled}_dropout", Dropout(dropout, site_name))
        if dropout and "attention" in self.roles:
            attention.weights_dropout = Dropout(dropout, f"layers.{site.layer}.attention.weights")
        found = [one for one in self.modules() if isinstance(one, CausalConvolution)]
        for state, convolution in enumerate(found):
            convolution.state = state
        self.convolutions = len(found)

    def borrow(self, lender: "DecoderLayer") -> list[str]:
        """Mark attention and feed-forward as lent by another layer, and return the names to tie.

        The modules stay this layer's: who listens to them, or adapts them, tells layers apart.

        Raises:
            UserError: the two layers are not built alike.
        """
        names = []
        for role in self.roles:
            own, lent = getattr(self, role), getattr(lender, role, None)
            if lent is None or _sizes(own) != _sizes(lent):
                raise UserError(
                    f"layers {lender.number} and {self.number} cannot share their {role}: the part "
                    "differs from layer to layer; type sharing=none"
                )
            for module in own.modules():
                vars(module)["lent"] = True
            names += [f"{role}.{name}" for name in _sizes(own)]
        return names

    def run(self, x: Stream, flow: Flow) -> Stream:
        """Return the stream after this layer; what it hands on is in `flow.carry`."""
        for role in self.roles:
            x = self._sublayer(role, x, flow)
        return x

    def _sublayer(self, role: str, x: Stream, flow: Flow) -> Stream:
        parts: dict[str, Any] = self._modules
        residual: Any = parts[f"{role}_residual"]
        norm: Any = parts[f"{role}_norm"]
        raw: Stream = residual.forward("read", x, flow)
        entered = norm(raw) if self.placement in ("pre", "both") else raw
        shortcut: Any = parts.get(f"{role}_shortcut")
        if shortcut is not None:  # one product more reads the same
            entered = write_gradient(entered)
        out = parts[role](entered, flow)
        y: Stream = out[0] if isinstance(out, tuple) else out
        if self.dropout:
            y = parts[f"{role}_dropout"](y)
        if self.placement == "both":
            y = parts[f"{role}_norm_out"](y)
        elif self.placement == "after":
            y = norm(y)
        if shortcut is not None:
            y = y + shortcut(entered, raw, flow)
        x = residual.forward("write", x, y, flow)
        return norm(x) if self.placement == "post" else x

    @staticmethod
    def _companions(block: BlockSpec, role: Role) -> list[tuple[str, Slot, Choice]]:
        found: list[tuple[str, Slot, Choice]] = [
            (f"{role}_norm", "norm", block.norm),
            (f"{role}_shortcut", "shortcut", block.shortcut),
            (f"{role}_residual", "residual", block.residual),
        ]
        if block.placement == "both":
            found.append((f"{role}_norm_out", "norm", block.norm))
        return found


def count_sublayers(block: BlockSpec, shape: Shape, find: Find) -> int:
    """Return how many sublayers a layer has."""
    site = Site(shape=shape)
    return sum(_there(find, role, getattr(block, role), site.at(role)) for role in ROLES)


def layer_cost(block: BlockSpec, site: Site, find: Find, *, borrows: bool = False) -> Cost | None:
    """Return what one layer costs by its parts' formulas; None where a part has none.

    A layer that borrows attention and feed-forward does their work, but owns no parameters of them.

    Unit: as `Cost`.
    """
    total = Cost()
    for role in ROLES:
        here = site.at(role)
        if not _there(find, role, getattr(block, role), here):
            continue
        chosen: list[tuple[Slot, Choice]] = [(role, getattr(block, role))]
        chosen += [(slot, choice) for _, slot, choice in DecoderLayer._companions(block, role)]
        for slot, choice in chosen:
            if not _there(find, slot, choice, here):
                continue
            kind = find(slot, choice.name)
            cost = kind.cost(site.shape.width, here, **kind.given(choice.given()))
            if cost is None:
                return None
            lent = borrows and slot in ROLES
            total += replace(cost, weights=0, scalars=0) if lent else cost
    return total


def _sizes(part: nn.Module) -> dict[str, torch.Size]:
    return {name: parameter.shape for name, parameter in part.named_parameters()}


def _there(find: Find, slot: Slot, choice: Choice, site: Site) -> bool:
    kind = find(slot, choice.name)
    return kind.present(site, **kind.given(choice.given()))
