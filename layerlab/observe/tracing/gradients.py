"""One forward and one backward in which every layer's gradient is read as it passes.

Between the two only the stream between the blocks is kept: a block is computed again when the
backward pass reaches it, as in training with gradient checkpointing. The cost is two forwards and
one backward; the memory is layer x token x width for the streams, one block's own graph, and the
logits of one position.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointError, checkpoint
from transformers import PreTrainedModel

from layerlab.errors import NotApplicable
from layerlab.observe.architecture.structure import ModelStructure, first_tensor
from layerlab.observe.tracing.block_calls import find_stream
from layerlab.records.layer_names import EMBEDDING, layer_name
from layerlab.shapes import Scalar, Tokens, Vocabulary
from layerlab.system.hardware import is_out_of_memory

Objective = Callable[[Tensor], Scalar]
Keep = Callable[[int, Tensor, Tensor], None]


class _Changed(Exception):
    """A stream was written over, so a block could not be computed again from it."""


def logits_and_gradient(
    model: PreTrainedModel,
    anatomy: ModelStructure,
    tokens: Tokens,
    position: int,
    objective: Objective,
    keep: Keep,
    *,
    again: bool = True,
) -> Vocabulary:
    """Return the logits at a position, and hand the objective's gradient to `keep`.

    d objective / d stream of every layer, EMBEDDING to the last block

    Source: simonyan13, section 3.

    Args:
        objective: what is differentiated.
        keep: takes layer, stream and gradient, one sequence without its batch axis; the last layer
            comes first, and after a fault the whole may come once more.
        again: blocks are computed a second time to save memory; where a model does not allow it,
            everything is kept.

    Raises:
        NotApplicable: no logits, no stream between blocks, or no backward pass.
    """
    run = partial(_pass, model, anatomy, tokens, position, objective, keep)
    try:
        if again and model.supports_gradient_checkpointing:
            try:
                with _recompute(anatomy.blocks):
                    return run(copied=False)
            except (CheckpointError, _Changed):
                pass
        return run(copied=True)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        message = (str(error).splitlines() or [type(error).__name__])[0]
        raise NotApplicable(f"its backward pass failed: {message}") from error


@contextmanager
def _recompute(blocks: Sequence[nn.Module]) -> Iterator[None]:
    """Let the blocks keep only their input and compute again, until the context ends."""
    before = [vars(block).get("forward") for block in blocks]
    try:
        for block in blocks:
            block.forward = partial(
                checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False
            )
        yield
    finally:
        for block, own in zip(blocks, before, strict=True):
            if own is None:
                vars(block).pop("forward", None)
            else:
                block.forward = own


@dataclass
class _Streams:
    """The tensors between the blocks, with the place of each gradient."""

    length: int
    keep: Keep
    copied: bool
    held: dict[int, tuple[Tensor, int]] = field(default_factory=dict)

    def start(self, module: nn.Module, args: Any, options: Any) -> None:
        self.hold(EMBEDDING, find_stream(args, options).requires_grad_(True))

    def leave(self, layer: int, module: nn.Module, args: Any, output: Any) -> None:
        self.hold(layer, first_tensor(output))

    def hold(self, layer: int, stream: Tensor) -> None:
        if layer in self.held:
            raise NotApplicable("it runs its blocks more than once in one forward")
        if stream.dim() != 3 or stream.shape[:2] != (1, self.length):
            raise NotApplicable(
                f"its blocks pass a tensor of shape {tuple(stream.shape)}, not 1 x "
                f"{self.length} x width"
            )
        kept = stream.detach().clone() if self.copied else stream.detach()
        self.held[layer] = (kept, kept._version)
        stream.register_hook(partial(self.give, layer))

    def check(self) -> None:
        if any(kept._version != version for kept, version in self.held.values()):
            raise _Changed

    def give(self, layer: int, gradient: Tensor) -> None:
        kept, _ = self.held.pop(layer)
        self.keep(layer, kept[0], gradient[0].detach())


def _pass(
    model: PreTrainedModel,
    anatomy: ModelStructure,
    tokens: Tensor,
    position: int,
    objective: Objective,
    keep: Keep,
    *,
    copied: bool,
) -> Tensor:
    streams = _Streams(len(tokens), keep, copied)
    options: dict[str, Any] = {"use_cache": False}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        options["logits_to_keep"] = torch.tensor([position], device=tokens.device)
    with ExitStack() as stack, torch.enable_grad():
        first = anatomy.blocks[0].register_forward_pre_hook(streams.start, with_kwargs=True)
        stack.callback(first.remove)
        for index, block in enumerate(anatomy.blocks):
            hook = block.register_forward_hook(partial(streams.leave, index))
            stack.callback(hook.remove)
        logits = getattr(model(input_ids=tokens[None], **options), "logits", None)
        if logits is None:
            raise NotApplicable("it gives no logits")
        streams.check()
        at = logits[0, 0 if logits.shape[1] == 1 else position]
        wide = at.to(torch.promote_types(at.dtype, torch.float32))
        objective(wide).backward()
    if streams.held:
        raise NotApplicable(f"no gradient reached {layer_name(max(streams.held))}")
    return wide.detach()
