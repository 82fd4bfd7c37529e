"""Readout of a stream: of the last by final norm and head, of an earlier one by blocks.

Nothing here knows a family. The model's own forward runs with blocks that pass on what they are
given, so whatever stands behind them is the model's own code. What blocks hand on beside the stream
is emptied, so that no later layer speaks in the readout of an earlier one; where it reaches the
logits, the readout of the last layer is not what the model gave, and it is refused.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from transformers import PreTrainedModel

from layerlab.errors import NotApplicable
from layerlab.observe.architecture.structure import ModelStructure, first_tensor, with_first
from layerlab.observe.tracing.aligned_head import Room, align_head
from layerlab.observe.tracing.block_calls import find_stream
from layerlab.observe.tracing.gradients import are_logits
from layerlab.records.layer_names import EMBEDDING, layer_name
from layerlab.shapes import States, TokenIds, Tokens
from layerlab.system.hooks import replacing_forward

# Of the largest logit: the same products, summed in float32 and in another order at most, ...
_SUMS = 64 * torch.finfo(torch.float32).eps
# ... and then rounded, as what they are products of may be.
_ROUNDINGS = 4
# Positions at which a readout of the last layer is held against the model's own logits.
_CHECKED = 16
_NONE = "it gives no logits for every token"
Logits = Float[Tensor, "place vocab"]
Readout = Callable[[States], Logits]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One forward of one sequence.

    Attributes:
        places: the positions whose logits are wanted, rising.
        streams: before the blocks and behind each.
        logits: at those positions.
        outputs: of each block, as it gave them.
    """

    tokens: Tokens
    places: Int[Tensor, " place"]
    streams: list[States]
    logits: Logits
    outputs: list[Any]


@torch.no_grad()
def answer(
    model: PreTrainedModel, anatomy: ModelStructure, tokens: Tokens, places: Tensor
) -> Answer:
    """Run one sequence, and keep its streams and its logits at some positions.

    Raises:
        NotApplicable: there is no finite stream with an entry per token, or there are no logits.
    """
    streams, outputs = list[States](), list[Any]()

    def keep(stream: Tensor) -> None:
        # Several streams per token are read as they are.
        if stream.dim() < 3 or stream.shape[:2] != (1, len(tokens)):
            raise NotApplicable(
                f"its blocks pass a tensor of shape {tuple(stream.shape)}, not one entry per token"
            )
        if not bool(stream.isfinite().all()):
            raise NotApplicable(
                f"features behind {layer_name(EMBEDDING + len(streams))} are not finite"
            )
        streams.append(stream[0].clone())  # some models change it in place behind the block

    def enter(module: nn.Module, args: Any, options: Any) -> None:
        keep(find_stream(args, options))

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        outputs.append(output)
        keep(first_tensor(output))

    with ExitStack() as stack:
        front = anatomy.blocks[0].register_forward_pre_hook(enter, with_kwargs=True)
        stack.callback(front.remove)
        for block in anatomy.blocks:
            stack.callback(block.register_forward_hook(leave).remove)
        logits = _logits(model, tokens[None], places)
    if not are_logits(logits, tokens):
        raise NotApplicable(_NONE)
    if len(outputs) != len(anatomy.blocks):
        raise NotApplicable("it does not run each of its blocks once in a forward")
    return Answer(tokens=tokens, places=places, streams=streams, logits=logits[0], outputs=outputs)


@contextmanager
def reading_out(
    model: PreTrainedModel, anatomy: ModelStructure, given: Answer
) -> Iterator[Readout]:
    """Yield a function from a stream to the logits that the model makes of it.

    The logits are those at the answer's positions; gradients pass through. The model is as it was
    found when the context ends.

    Raises:
        NotApplicable: the model makes its logits of more than the last stream.
    """
    stream = list[Tensor]()

    def readout(last: States) -> Logits:
        stream[:] = [last[None]]
        return _logits(model, given.tokens[None], given.places)[0]

    # The carry of the finished pass holds what later layers made.
    emptied = [_empty_carry(output) for output in given.outputs]
    with _passing(anatomy.blocks, emptied, stream):
        some = spread(len(given.places), _CHECKED)
        with torch.no_grad():
            stream[:] = [given.streams[-1][None]]
            again = _logits(model, given.tokens[None], given.places[some])[0]
            missed = again - given.logits[some]
        allowed = _SUMS + _ROUNDINGS * torch.finfo(missed.dtype).eps
        if not float(missed.abs().max()) <= allowed * float(given.logits.abs().max()):
            raise NotApplicable("more than the stream behind its last block reaches its logits")
        yield readout


@torch.no_grad()
def resume(
    model: PreTrainedModel,
    anatomy: ModelStructure,
    given: Answer,
    layer: int,
    rows: int,
    room: Room | None = None,
) -> Float[Tensor, "row place vocab"]:
    """Return the logits of so many copies of a sequence, of which only later blocks are run.

    Args:
        layer: the first block that is run, on the stream that the answer holds.
        rows: of the batch; hooks may make them differ.
        room: for the logits, which last until it is used again.
    """
    skipped = anatomy.blocks[:layer]
    stream = given.streams[layer]
    copies = stream.repeat(rows, *(1 for _ in stream.shape))  # some models change it in place
    with _passing(skipped, given.outputs[:layer], [copies]):
        return _logits(model, given.tokens.expand(rows, -1), given.places, room)


def spread(count: int, most: int) -> Tensor:
    """Return at most so many of the positions 0 to count - 1, spread evenly, the ends included."""
    return torch.linspace(0, count - 1, min(count, most)).round().long()


def _logits(
    model: PreTrainedModel, tokens: TokenIds, places: Tensor, room: Room | None = None
) -> Float[Tensor, "row place vocab"]:
    """Return the logits at some positions; no others are computed where the model can leave them.

    Raises:
        NotApplicable: there are none.
    """
    kept = "logits_to_keep" in inspect.signature(model.forward).parameters
    options = {"logits_to_keep": places} if kept else {}
    with align_head(model, room):
        found = getattr(model(input_ids=tokens, use_cache=False, **options), "logits", None)
    if not isinstance(found, Tensor) or found.dim() != 3:
        raise NotApplicable(_NONE)
    return found if found.shape[1] == len(places) else found[:, places]


def _empty_carry(output: Any) -> Any:
    """Return a block's output with zeros in place of the numbers beside the stream."""

    def empty(value: Any) -> Any:
        numbers = isinstance(value, Tensor) and value.is_floating_point()
        return torch.zeros_like(value) if numbers else value

    return with_first(tree_map(empty, output), first_tensor(output))


@contextmanager
def _passing(
    blocks: tuple[nn.Module, ...], outputs: list[Any], stream: list[Tensor]
) -> Iterator[None]:
    """Have every block give the one batch of streams, in the form of its own output."""

    def stand_in(output: Any) -> Callable[..., Any]:
        def forward(*args: Any, **options: Any) -> Any:
            return with_first(output, stream[0])

        return forward

    with ExitStack() as stack:
        for block, output in zip(blocks, outputs, strict=True):
            stack.enter_context(replacing_forward(block, stand_in(output)))
        yield
