"""One forward and one backward in which every layer's gradient is read as it passes.

Where memory matters, between the two only the stream between the blocks is kept: a block is
computed again when the backward pass reaches it, as in training with gradient checkpointing. The
cost is two forwards and one backward; the memory is layer x token x width for the streams, one
block's own graph, and the logits: of one position for a saliency, of all for a loss.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import frexp, nan
from typing import Any, TypeGuard, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointError, checkpoint
from transformers import PreTrainedModel

from layerlab.errors import NotApplicable
from layerlab.observe.architecture.structure import ModelStructure, first_tensor
from layerlab.observe.tracing.block_calls import find_stream, one_sequence
from layerlab.records.layer_names import EMBEDDING, layer_name
from layerlab.shapes import Scalar, Tokens, Vocabulary
from layerlab.system.hardware import is_out_of_memory

MANY_TOKENS = 2048
"""A Llama of 8 B keeps 9 GB of so many in bf16: each block 17 numbers for each of the stream's."""

LARGEST_SCALE = 12
"""Of a float16 model's target, as a power of 2: what the head makes of it is in float16 too."""

ROWS = 1024
T = TypeVar("T")
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

    def run(twice: bool) -> Tensor:
        return _pass(model, anatomy, tokens, position, objective, keep, copied=not twice)

    return _run_backward(model, anatomy.blocks, run, twice=again)


def stream_gradients(
    model: PreTrainedModel, anatomy: ModelStructure, tokens: Tokens
) -> dict[int, Tensor]:
    """Return the gradient of the next-token loss by the embedding and by every block's output.

    d loss / d stream

    Blocks are computed a second time above `MANY_TOKENS`, where what they keep outgrows a GPU.

    Source: Own.
    Unit: nats per unit of the features.

    Raises:
        NotApplicable: there is no such loss, or no backward pass.
    """
    run = partial(_differentiate, model, anatomy, tokens)
    return _run_backward(model, anatomy.blocks, run, twice=len(tokens) > MANY_TOKENS)


def are_logits(found: Any, tokens: Tokens) -> TypeGuard[Tensor]:
    """Return whether a model's answer has an entry for each token, as the scores of labels lack."""
    return isinstance(found, Tensor) and found.dim() == 3 and found.shape[-1] > int(tokens.max())


def next_token_loss(output: Any, tokens: Tokens) -> Scalar | None:
    """Return the mean next-token loss, None where there are no logits of every token.

    NaN where they have no entry for one of the tokens.

    -mean_t log softmax(logits_t)[next token]

    Source: Own.
    Unit: nats.
    """
    logits = getattr(output, "logits", None)
    if logits is None or logits.dim() != 3 or logits.shape[1] != tokens.shape[0]:
        return None
    tokens = tokens.to(logits.device)
    # Scores of labels have no entry for most tokens: the host need not wait to learn that.
    there = tokens.clamp(max=logits.shape[-1] - 1)
    # Some rows at a time: logits in float32 are the largest tensor of a long text.
    pieces = zip(logits[0, :-1].split(ROWS), there[1:].split(ROWS), strict=True)
    sums = [nn.functional.cross_entropy(a.float(), b, reduction="sum") for a, b in pieces]
    return (torch.stack(sums).sum() / (tokens.shape[0] - 1)).where((there == tokens).all(), nan)


def _run_backward(
    model: PreTrainedModel, blocks: Sequence[nn.Module], run: Callable[[bool], T], *, twice: bool
) -> T:
    """Run with blocks that are computed twice, and with all kept where a model does not allow it.

    Raises:
        NotApplicable: there is no backward pass; what is for want of memory stays as it is.
    """
    try:
        if twice and model.supports_gradient_checkpointing:
            try:
                with _recompute(blocks):
                    return run(True)
            except (CheckpointError, _Changed):
                pass
        return run(False)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        message = (str(error).splitlines() or [type(error).__name__])[0]
        raise NotApplicable(f"its backward pass failed: {message}") from error


def _differentiate(
    model: PreTrainedModel, anatomy: ModelStructure, tokens: Tensor, twice: bool
) -> dict[int, Tensor]:
    gradients: dict[int, Tensor] = {}
    streams: list[tuple[Tensor, int]] = []
    # A mean over many tokens has gradients below the least number of float16.
    scale = 2.0 ** len(tokens).bit_length()

    def keep(layer: int, gradient: Tensor) -> None:
        gradients[layer] = _unscale(one_sequence(gradient), scale)

    def hold(layer: int, stream: Tensor) -> None:
        stream.register_hook(partial(keep, layer))
        streams.append((stream.detach(), stream._version))

    def start(module: nn.Module, args: Any, options: Any) -> None:
        hold(EMBEDDING, find_stream(args, options).requires_grad_(True))

    def leave(layer: int, module: nn.Module, args: Any, output: Any) -> None:
        hold(layer, first_tensor(output))

    with _listening(anatomy.blocks, start, leave), torch.enable_grad():
        output = model(input_ids=tokens[None], use_cache=False)
        loss = next_token_loss(output, tokens)
        if loss is None or not are_logits(output.logits, tokens):
            raise NotApplicable(
                "it gives no logits for every token, so there is no next-token loss"
            )
        if twice and any(stream._version != version for stream, version in streams):
            raise _Changed
        (scale * loss).backward()
    return gradients


def _unscale(gradient: Tensor, scale: float) -> Tensor:
    """Return a gradient over its scale, in float32 where it is in float16."""
    wide = torch.promote_types(gradient.dtype, torch.bfloat16)
    return gradient.detach().to(wide) / scale


@contextmanager
def _listening(
    blocks: Sequence[nn.Module], start: Callable[..., None], leave: Callable[..., None]
) -> Iterator[None]:
    """Call a hook in front of the first block, and one behind each with its number."""
    with ExitStack() as stack:
        first = blocks[0].register_forward_pre_hook(start, with_kwargs=True, prepend=True)
        stack.callback(first.remove)
        for index, block in enumerate(blocks):
            hook = block.register_forward_hook(partial(leave, index))
            stack.callback(hook.remove)
        yield


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
    scale: float = 1.0
    measured: bool = True
    last: Tensor | None = None
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
        self.last = stream

    def scale_up(self, target: Scalar) -> Scalar:
        """Return the target, scaled so that float16 holds the gradients of a large stream."""
        if self.last is not None and self.last.dtype == torch.float16:
            self.measured = False
            (gradient,) = torch.autograd.grad(target, self.last, retain_graph=True)
            self.measured = True
            exponent = -frexp(float(gradient.abs().amax()))[1]
            self.scale = 2.0 ** min(max(exponent, 0), LARGEST_SCALE)
        return self.scale * target

    def check(self) -> None:
        if any(kept._version != version for kept, version in self.held.values()):
            raise _Changed

    def give(self, layer: int, gradient: Tensor) -> None:
        if self.measured:
            kept, _ = self.held.pop(layer)
            self.keep(layer, kept[0], _unscale(gradient[0], self.scale))


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
    with _listening(anatomy.blocks, streams.start, streams.leave), torch.enable_grad():
        logits = getattr(model(input_ids=tokens[None], **options), "logits", None)
        if not are_logits(logits, tokens):
            raise NotApplicable("it gives no logits")
        streams.check()
        at = logits[0, 0 if logits.shape[1] == 1 else position]
        wide = at.to(torch.promote_types(at.dtype, torch.float32))
        streams.scale_up(objective(wide)).backward()
    if streams.held:
        raise NotApplicable(f"no gradient reached {layer_name(max(streams.held))}")
    return wide.detach()
