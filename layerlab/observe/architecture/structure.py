"""Find the blocks, the attention and the feed-forward of a Hugging Face model.

Nothing here knows a family: blocks are the stack that the configuration counts, attention is what
asks transformers' `AttentionInterface` for its function (or, in the families that compute attention
by themselves, what calls itself attention and holds weight matrices).
"""

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map
from transformers import PreTrainedModel

from layerlab.errors import NotApplicable

INTERFACE = "ALL_ATTENTION_FUNCTIONS"
_LINEAR = re.compile("linear|lightning|mamba|recurrent|delta", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class AttentionPart:
    """One softmax attention: the module that computes it and the child of the block it lies in.

    Attributes:
        number: counts attention layers from 0.
        block: counts blocks from 0.
        module: what computes the scores.
        outer: the direct child of the block that contains it: the sublayer.
        interface: whether it asks the `AttentionInterface` for its function.
    """

    number: int
    block: int
    name: str
    module: nn.Module
    outer: nn.Module
    interface: bool


@dataclass(frozen=True, kw_only=True)
class ModelStructure:
    """The parts of one model that a trace listens to."""

    name: str
    blocks: tuple[nn.Module, ...]
    attentions: tuple[AttentionPart, ...]

    def path(self, block: int) -> str:
        return f"{self.name}.{block}"

    def attention(self, name: str) -> AttentionPart:
        """Return the attention layer of this name."""
        return next(part for part in self.attentions if part.name == name)

    def find_shared(self, given: AttentionPart, block: int) -> AttentionPart:
        """Return the attention of a block whose module this is, where several blocks share one."""
        alike = (one for one in self.attentions if one.module is given.module)
        return next((one for one in alike if one.block == block), given)


def anatomy(model: PreTrainedModel) -> ModelStructure:
    """Find the stack of blocks and its attention layers.

    Raises:
        NotApplicable: the model has no stack of blocks.
    """
    name, blocks = _stack(model)
    parts: list[AttentionPart] = []
    for index, block in enumerate(blocks):
        for child_name, child in block.named_children():
            for path, module in _attentions(child_name, child):
                full = ".".join(piece for piece in (name, str(index), child_name, path) if piece)
                parts.append(
                    AttentionPart(
                        number=len(parts),
                        block=index,
                        name=full,
                        module=module,
                        outer=child,
                        interface=uses_interface(module),
                    )
                )
    if any(part.interface for part in parts):  # then nothing else is attention over tokens
        asking = [part for part in parts if part.interface]
        parts = [replace(part, number=number) for number, part in enumerate(asking)]
    return ModelStructure(name=name, blocks=tuple(blocks), attentions=tuple(parts))


def text_config(model: PreTrainedModel) -> Any:
    """Return the part of the configuration that describes the language model."""
    return model.config.get_text_config(decoder=True)


def context_length(model: PreTrainedModel) -> int | None:
    """Return the tokens of the longest input; None if unlimited.

    A table of positions that begins with one of padding has none for a token up to there.
    """
    config = text_config(model)
    for field in ("max_position_embeddings", "max_seq_len", "n_positions", "seq_length"):
        if isinstance(length := getattr(config, field, None), int) and length > 0:
            break
    else:
        return None
    lost = (
        module.padding_idx + 1
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) and module.padding_idx is not None
        if "position" in name.rpartition(".")[2] and module.num_embeddings == length
    )
    return length - max(lost, default=0)


def _stack(model: PreTrainedModel) -> tuple[str, nn.ModuleList]:
    """Find the stack of blocks: the outermost module list as long as the configuration says."""
    root = model.get_decoder() if hasattr(model, "get_decoder") else None
    if root is None or not any(isinstance(module, nn.ModuleList) for module in root.modules()):
        root = model
    prefix = next(name for name, module in model.named_modules() if module is root)
    lists = [
        (f"{prefix}.{name}".strip("."), module)
        for name, module in root.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) and has_matrix(module[0])
    ]
    if not lists:
        raise NotApplicable(f"{type(model).__name__} has no list of blocks")
    layers = getattr(text_config(model), "num_hidden_layers", None)
    fitting = [pair for pair in lists if len(pair[1]) == layers] or lists
    outermost = min(pair[0].count(".") for pair in fitting)
    found = max((p for p in fitting if p[0].count(".") == outermost), key=lambda p: len(p[1]))
    if all(module in dict(_attentions("", module)).values() for module in found[1]):
        raise NotApplicable(f"the layers of {type(model).__name__} are not modules of their own")
    return found


def _attentions(child: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the innermost softmax attentions in one child of a block, without cross-attention."""
    found = [
        (name, inner)
        for name, inner in module.named_modules()
        if (uses_interface(inner) or _looks_like_attention(inner)) and not _is_over_depth(inner)
    ]
    for name, inner in found:
        nested = any(other is not inner and _inside(name, path) for path, other in found)
        if not nested and not _is_cross(f"{child}.{name}", inner):
            yield name, inner


def _inside(outer: str, path: str) -> bool:
    return path != outer and (not outer or path.startswith(outer + "."))


def _is_over_depth(module: nn.Module) -> bool:
    """Return whether a module attends over depth, as in Inkling 2: it projects no token.

    Its query is a parameter of its own.
    """
    learned = next(module.parameters(recurse=False), None) is not None
    return uses_interface(module) and learned and not any(map(has_matrix, module.children()))


def _looks_like_attention(module: nn.Module) -> bool:
    kind = type(module).__name__
    return (
        ("Attention" in kind or "Attn" in kind)
        and not _LINEAR.search(kind)
        and not isinstance(module, nn.ModuleList)
        and has_matrix(module)
    )


def _is_cross(name: str, module: nn.Module) -> bool:
    return bool(getattr(module, "is_cross_attention", False)) or bool(
        re.search("cross|encoder_attn|encdec", f"{name} {type(module).__name__}", re.IGNORECASE)
    )


def has_matrix(module: nn.Module) -> bool:
    """Return whether a module has a weight of two axes or more, as no norm has."""
    return any(parameter.dim() > 1 for parameter in module.parameters())


def own_functions(module: nn.Module) -> Iterator[FunctionType]:
    """Yield the plain functions given to a module or defined by its classes, without decorators."""
    for member in vars(module).values():
        if isinstance(member, FunctionType):
            yield inspect.unwrap(member)
    for owner in type(module).__mro__:
        if owner is nn.Module:
            return
        for member in vars(owner).values():
            if isinstance(member, FunctionType):
                yield inspect.unwrap(member)


def _asking(module: nn.Module) -> FunctionType | None:
    """Return the function or method that asks the attention interface for an implementation."""
    for function in own_functions(module):
        if INTERFACE in function.__code__.co_names:
            return function
    return None


def uses_interface(module: nn.Module) -> bool:
    """Return whether a module asks transformers' `AttentionInterface` for its attention."""
    return _asking(module) is not None


def interface_of(module: nn.Module) -> tuple[Any, Callable[..., Any] | None]:
    """Return the interface that a module asks, and the eager function that it falls back to."""
    function = _asking(module)
    assert function is not None, "only modules that use the interface are asked for it"
    scope = function.__globals__
    names = function.__code__.co_names
    eager = [name for name in names if "eager" in name and callable(scope.get(name))]
    return scope[INTERFACE], scope[eager[0]] if eager else None


def first_tensor(output: Any) -> torch.Tensor:
    """Return the hidden features of a module's output, which may be a tuple."""
    return output[0] if isinstance(output, (tuple, list)) else output


def with_first(output: Any, features: torch.Tensor) -> Any:
    """Return a module's output with other hidden features.

    Where these have the rows of the first several times, so has what stands beside them, such as
    the choice of keys that one block hands to the next.
    """
    if not isinstance(output, tuple | list):
        return features
    rows = len(output[0])

    def repeat(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dim() == 0 or len(value) != rows:
            return value
        return value.repeat(len(features) // rows, *(1 for _ in value.shape[1:]))

    rest = output[1:] if len(features) == rows else tree_map(repeat, tuple(output[1:]))
    if isinstance(output, tuple) and hasattr(output, "_fields"):
        return type(output)(features, *rest)
    return type(output)((features, *rest))


def find_rotary(model: nn.Module) -> nn.Module | None:
    """Return the module that makes the model's rotary tables, if it has one."""
    return next((m for m in model.modules() if hasattr(m, "attention_scaling")), None)
