"""Records the largest score of every head in the forward passes of training.

A fused kernel shows no scores, and to form them all would cost a sixth more attention. But no score
is larger than |q| |k| times its factor: heads that cannot pass a limit by that bound are left
alone, and the others' scores are formed once more, without a gradient.

Source: kimi25, section 2.1: the largest score is that of a head over all of a batch.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from layerlab.errors import UserError
from layerlab.numerics.emulation.emulated_tensor import EmulatedTensor, unwrap
from layerlab.observe.architecture.structure import interface_of
from layerlab.observe.tracing.attention.probe import implementation, restore_function
from layerlab.training.qk_control.heads import QKHead

HEARD = ("eager", "sdpa")
ELEMENTS = 1 << 22  # scores at once


class MaxLogits:
    """The largest score of each head while the model trains.

    Args:
        model: whose forward passes are listened to.
        heads: its attention layers.
        limit: scores below it are not looked for.

    Raises:
        UserError: a layer computes attention by itself.
    """

    def __init__(self, model: nn.Module, heads: Sequence[QKHead], limit: float) -> None:
        self.heads = heads
        self._open = ExitStack()
        self._functions: dict[tuple[int, str], Callable[..., Any]] = {}
        self._interfaces: list[tuple[nn.Module, Any, Any]] = []
        for head in heads:
            module = head.part.module
            if not head.part.interface:
                raise UserError(
                    f"control.qk_clip listens to attention functions, and {type(module).__name__} "
                    "computes attention by itself; leave clip out"
                )
            self._interfaces.append((module, *interface_of(module)))
            lowest = torch.full((head.query.heads,), -torch.inf)
            # No buffers: several processes would all be given the first one's.
            vars(module).update(largest_scores=lowest, score_limit=limit)
        self._handles = [
            model.register_forward_pre_hook(self._begin),
            model.register_forward_hook(self._end, always_call=True),
        ]

    def take(self) -> list[Tensor]:
        """Return the largest score of each head and layer since the last call, over all processes.

        Minus infinity stands for heads that could not pass the limit.
        """
        found = []
        for head in self.heads:
            largest = vars(head.part.module)["largest_scores"]
            found.append(largest.clone())
            largest.fill_(-torch.inf)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            for largest in found:
                torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX)
        return found

    def close(self) -> None:
        """Stop listening."""
        for handle in self._handles:
            handle.remove()
        for head in self.heads:
            for name in ("largest_scores", "score_limit"):
                vars(head.part.module).pop(name, None)

    def _begin(self, model: nn.Module, args: Any) -> None:
        """Replace the attention functions that the model will ask for."""
        if not model.training:
            return
        for module, interface, eager in self._interfaces:
            name = implementation(module)
            if name not in HEARD:
                self._open.close()
                raise UserError(
                    "control.qk_clip cannot see the scores of train.attn_implementation = "
                    f'"{name}"; write attn_implementation = "sdpa"'
                )
            key = (id(interface), name)
            before = interface.get(name)
            if before is not None and before is self._functions.get(key):
                continue
            # One function for good: a compiled layer would be compiled again for another.
            if key not in self._functions:
                self._functions[key] = _listening(before or eager, name)
            interface[name] = self._functions[key]
            self._open.callback(restore_function, interface, name, before)

    def _end(self, *_: Any) -> None:
        self._open.close()


def _listening(own: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Wrap an attention function so that it notes the largest scores of modules that ask for it."""

    def attention(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Any,
        *args: Any,
        **options: Any,
    ) -> Any:
        largest = getattr(module, "largest_scores", None)
        if largest is not None:
            scaling = options.get("scaling", args[0] if args else None)
            factor = query.shape[-1] ** -0.5 if scaling is None else scaling
            # Eager attention knows no rule but its mask; the fused one is causal where it has none.
            causal = mask is None and name != "eager" and getattr(module, "is_causal", True)
            if largest.device != query.device:
                largest = module.largest_scores = largest.to(query.device)
            _note(largest, query, key, mask, float(factor), bool(causal), module.score_limit)
        return own(module, query, key, value, mask, *args, **options)

    return attention


@torch.no_grad()
def _note(
    largest: Tensor,
    query: Tensor,
    key: Tensor,
    mask: Any,
    factor: float,
    causal: bool,
    limit: float,
) -> None:
    if isinstance(query, EmulatedTensor):
        with _disable_current_modes():
            _note(largest, unwrap(query), unwrap(key), unwrap(mask), factor, causal, limit)
    elif torch.compiler.is_compiling():
        # A graph has no branches: all scores are formed.
        group = query.shape[1] // key.shape[1]
        scores = (query @ key.repeat_interleave(group, 1).mT).float() * factor
        scores = scores.masked_fill(~_visible(mask, causal, scores), -torch.inf)
        largest.copy_(torch.maximum(largest, scores.amax((0, 2, 3))))
    else:
        _note_above(largest, query, key, mask, factor, causal, limit)


def _note_above(
    largest: Tensor,
    query: Tensor,
    key: Tensor,
    mask: Any,
    factor: float,
    causal: bool,
    limit: float,
) -> None:
    """Note the largest scores of sequences and heads that may pass the limit."""
    group = query.shape[1] // key.shape[1]
    # In float32: rounded down in their own type, the bound would be none.
    wide = torch.float32
    lengths = [torch.linalg.vector_norm(one, dim=-1, dtype=wide).amax(-1) for one in (query, key)]
    bound = lengths[0] * lengths[1].repeat_interleave(group, 1) * abs(factor)
    above = (bound > limit).nonzero()
    step = max(1, ELEMENTS // (query.shape[2] * key.shape[2]))
    for places in above.split(step):
        rows, heads = places.unbind(1)
        scores = (query[rows, heads] @ key[rows, heads // group].mT).float() * factor
        seen = _visible(mask, causal, scores)
        if seen.dim() == 4:
            seen = seen.expand(len(query), query.shape[1], -1, -1)[rows, heads]
        found = scores.masked_fill(~seen, -torch.inf).amax((1, 2))
        largest.scatter_reduce_(0, heads, found, "amax")


def _visible(mask: Any, causal: bool, scores: Tensor) -> Tensor:
    """Return which keys a query sees."""
    if isinstance(mask, Tensor):
        mask = mask[..., : scores.shape[-1]]
        return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    rows, keys = scores.shape[-2:]
    every = torch.ones(rows, keys, dtype=torch.bool, device=scores.device)
    return every.tril(keys - rows) if causal else every
