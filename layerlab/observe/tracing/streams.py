"""The residual stream alone, of several sequences side by side."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from layerlab.observe.architecture.structure import ModelStructure
from layerlab.observe.tracing.block_calls import find_stream, first_tensor
from layerlab.records.layer_names import EMBEDDING
from layerlab.system.hooks import temporary_hooks


def read_streams(
    model: PreTrainedModel,
    stack: ModelStructure,
    batch: Tensor,
    read: Callable[[int, Tensor], None],
) -> None:
    """Read the stream in front of the blocks and behind each, one layer at a time.

    Args:
        batch: token ids, sequence x token, without padding.
        read: is given the number of the layer, and the tokens of all sequences x width.
    """

    def enter(module: nn.Module, args: Any, options: Any) -> None:
        read(EMBEDDING, _tokens(find_stream(args, options)))

    def leave(layer: int) -> Callable[..., None]:
        return lambda module, args, output: read(layer, _tokens(first_tensor(output)))

    handles = [
        block.register_forward_hook(leave(layer)) for layer, block in enumerate(stack.blocks)
    ]
    first = stack.blocks[0]
    handles.append(first.register_forward_pre_hook(enter, with_kwargs=True, prepend=True))
    # Nobody reads the logits.
    parameters = inspect.signature(model.forward).parameters
    few = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}
    with temporary_hooks(handles), torch.no_grad():
        model(input_ids=batch, use_cache=False, **few)


def _tokens(stream: Tensor) -> Tensor:
    return stream.reshape(-1, stream.shape[-1])
