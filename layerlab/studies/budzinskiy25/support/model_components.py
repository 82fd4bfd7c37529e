"""Component of each place of a model, by what its modules are and when they run."""

import inspect
import re
from collections.abc import Iterable
from typing import Any

from torch import nn

from layerlab.numerics.emulation.attribution import WEIGHTS, SiteIndex
from layerlab.numerics.emulation.op_site import OpSite
from layerlab.observe.architecture.qkv_layouts import output_projection
from layerlab.observe.architecture.structure import AttentionPart, ModelStructure, has_matrix
from layerlab.studies.budzinskiy25.support.components import (
    ATTENDED,
    EMBEDDING,
    FEEDFORWARD,
    LOGITS,
    NORMS,
    OTHER,
    PROJECTED,
    ROTARY,
    SCORES,
    STORED,
    STREAM,
    WEIGHTED,
)

_ACTIVATIONS = ("torch.nn.modules.activation", "transformers.activations")
# What mixes tokens, or streams, is no feed-forward.
_MIXER = re.compile("(?i)attn|attention|mamba|mixer|conv|recurrent|rnn|norm|hyper|_hc$")
# What families call it, where a block holds several modules that could be one.
_NAMED = re.compile(r"(?i)mlp|ffn?$|feed_?forward|moe|expert|fc\d$|intermediate|^output$")
# What rotary positions are made of.
_TURNING = {"add", "mul", "sub", "view_as_real"}
# What families call the stream that a module adds to what it computes.
_ADDED = {"residual", "input_tensor"}


class ComponentIndex:
    """The component of each place of a model.

    Args:
        model: the model.
        stack: its blocks and their attention.
        places: where it rounds, in the order in which it first did.
    """

    def __init__(self, model: nn.Module, stack: ModelStructure, places: Iterable[OpSite]) -> None:
        self._sites = SiteIndex(model, places)
        self.places = self._sites.places
        self._modules = dict(model.named_modules())
        self._stack = stack
        self._order = {site: number for number, site in enumerate(self.places)}
        self._attention = {part.name: part for part in stack.attentions}
        self._outputs = {
            output_projection(stack.blocks[part.block], part.module) for part in stack.attentions
        }
        mixers = {part.outer for part in stack.attentions}
        self._mixer_names = {
            name
            for block in stack.blocks
            for name, child in block.named_children()
            if child in mixers
        }
        self._rotates = any(map(_is_rotary, self._modules.values()))
        self._head = getattr(model, "get_output_embeddings", lambda: None)()
        base = getattr(model, "base_model", model)
        self._around_blocks = {module for module in base.modules() if module is not model}
        inside = (
            n for n, p in enumerate(self.places) if self._inside(p) and not self._is_stored(p)
        )
        self._first = min(inside, default=0)

    def find(self, site: OpSite) -> str:
        """Return the component that a place belongs to, `OTHER` where none is known."""
        module = self._modules[site.module]
        if self._is_stored(site):
            return STORED
        if _is_rotary(module):
            return ROTARY
        if _is_norm(module):
            return NORMS
        block = self._inside(site)
        if block is None:
            return self._around(site)
        path = site.module.removeprefix(block).lstrip(".")
        adds = _adds_stream(module) and site.operation == "add"
        if not path or adds or any(one.startswith(f"{site.module}.") for one in self._attention):
            return STREAM
        part = self._attending(site.module)
        if part is not None:
            return self._attend(site, module, part)
        if module in self._outputs:
            return ATTENDED
        feedforwards = self._feedforwards(self._modules[block])
        return FEEDFORWARD if path.partition(".")[0] in feedforwards else OTHER

    def _is_stored(self, site: OpSite) -> bool:
        return self._sites.kind(site) == WEIGHTS

    def _inside(self, site: OpSite) -> str | None:
        """Return the path of the block that a place lies in."""
        found = re.match(re.escape(self._stack.name) + r"\.\d+(?=\.|$)", site.module)
        return found.group() if found else None

    def _around(self, site: OpSite) -> str:
        """Return the component of a place outside of the blocks."""
        if self._order[site] < self._first:
            return EMBEDDING
        module = self._modules[site.module]
        inner = module in self._around_blocks and module is not self._head
        return OTHER if inner else LOGITS

    def _attending(self, path: str) -> AttentionPart | None:
        """Return the attention that a module is, or lies in."""
        while path:
            if path in self._attention:
                return self._attention[path]
            path = path.rpartition(".")[0]
        return None

    def _attend(self, site: OpSite, module: nn.Module, part: AttentionPart) -> str:
        """Return the component of a place in an attention, before its weighted sum or behind it."""
        # A fused kernel rounds the weighted sum when it narrows it.
        mixed = self._first_of(part, "context", "cast")
        behind = mixed is not None and self._order[site] > mixed
        if module is part.module:
            if site.operation in ("scores", "softmax"):
                return SCORES
            if site.operation in ("context", "cast") or behind:
                return WEIGHTED
            if site.operation in _TURNING and self._turns(part):
                return ROTARY
            return PROJECTED if site.operation == "product" else SCORES
        if isinstance(module, nn.Softmax):
            return SCORES
        return ATTENDED if behind else PROJECTED

    def _turns(self, part: AttentionPart) -> bool:
        """Return whether an attention turns queries and keys: what it adds before its scores."""
        added, scored = self._first_of(part, "add"), self._first_of(part, "scores")
        return self._rotates or (added is not None and scored is not None and added < scored)

    def _first_of(self, part: AttentionPart, *operations: str) -> int | None:
        """Return when the code of an attention first rounds the result of some operation."""
        places = (OpSite(part.name, operation) for operation in operations)
        return min((self._order[one] for one in places if one in self._order), default=None)

    def _feedforwards(self, block: nn.Module) -> set[str]:
        """Return the children of a block that are, or make up, its feed-forward."""
        found = {
            name: child
            for name, child in block.named_children()
            if name not in self._mixer_names and not _MIXER.search(name) and not _is_norm(child)
        }
        heavy = {name for name, child in found.items() if has_matrix(child)}
        named = heavy if len(heavy) == 1 else {name for name in heavy if _NAMED.search(name)}
        curves = {n for n, child in found.items() if type(child).__module__ in _ACTIVATIONS}
        return named | curves


def _is_norm(module: nn.Module) -> bool:
    return "norm" in type(module).__name__.lower() and not has_matrix(module)


def _is_rotary(module: nn.Module) -> bool:
    return "rotary" in type(module).__name__.lower()


def _adds_stream(module: nn.Module) -> bool:
    """Return whether a module is given the stream, to add it to what it computes."""
    forward: Any = type(module).forward
    return not _ADDED.isdisjoint(inspect.signature(forward).parameters)
