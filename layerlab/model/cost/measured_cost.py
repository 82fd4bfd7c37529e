"""Cost of a variant, counted on the meta device: for parts without formulas.

Nothing is allocated and nothing is multiplied; PyTorch's counter sees the shapes alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from layerlab.blocks.operations.convolution import CausalConvolution
from layerlab.blocks.shape import Shape
from layerlab.blocks.spec import Spec
from layerlab.model.build import assemble
from layerlab.system.hooks import temporary_hooks


def count_operations(spec: Spec, shape: Shape) -> dict[str, int]:
    """Count what the fields of an `Account` say, on a model of the meta device.

    Operations outside matrix products stay unknown, as 0.
    """
    model: Any = assemble("counted", spec, shape, device="meta")
    model.set_attn_implementation("eager")
    carried: list[int] = []
    cached: list[int] = []
    tokens = torch.zeros(1, shape.context, dtype=torch.long, device="meta")
    # A whole mask: transformers would look into the positions to make one, and there are none.
    mask = torch.zeros(1, 1, shape.context, shape.context, device="meta")
    with (
        _watch(model, carried, cached),
        torch.no_grad(),
        FlopCounterMode(display=False) as counter,
    ):
        model(tokens, attention_mask=mask, use_cache=False)
    head = 0 if spec.stack.head == "tied" else model.lm_head.weight.numel()
    inside = list(_inside(model))
    embedding = [one for one in model.model.children() if isinstance(one, nn.Embedding)]
    return {
        "embedding": sum(one.weight.numel() for one in embedding),
        "head": head,
        "blocks": sum(one.numel() for one in inside if one.dim() > 1),
        "scalars": sum(one.numel() for one in inside if one.dim() < 2),
        "forward": counter.get_total_flops() // shape.context,
        "pointwise": 0,
        "carry": max(carried, default=0) // shape.context,
        "cached": sum(cached),
    }


def _inside(model: Any) -> Iterator[Tensor]:
    """Yield the parameters of the layers, of the norms and of the stack's residual."""
    for child in model.model.children():
        if not isinstance(child, nn.Embedding):
            yield from child.parameters()


@contextmanager
def _watch(model: Any, carried: list[int], cached: list[int]) -> Iterator[None]:
    """Note how many numbers each layer hands on, and how many its convolutions would keep."""

    def note(layer: nn.Module, given: Any, out: Any) -> None:
        carried.append(sum(one.numel() for one in out[2:]))

    def recall(convolution: Any, given: Any, out: Any) -> None:
        features = out if isinstance(out, tuple | list) else (out,)
        channels = sum(one.shape[-1] for one in features)
        cached.append(channels * (convolution.kernel - 1))

    hooks = [layer.register_forward_hook(note) for layer in model.model.layers]
    found = [one for one in model.modules() if isinstance(one, CausalConvolution)]
    hooks += [convolution.register_forward_hook(recall) for convolution in found]
    with temporary_hooks(hooks):
        yield
