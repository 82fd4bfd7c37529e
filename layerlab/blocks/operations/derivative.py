"""Derivatives written out by hand: where they stand in for autograd's, and where they must not."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules.module import _has_any_global_hook


def is_unwatched() -> bool:
    """Return whether operations run one by one, and only autograd's backward pass looks on.

    A compiler fuses the plain formula by itself; transforms of functions and forward derivatives
    take it apart; modes that count, round or listen know the operations that it is made of.
    """
    return not (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or forward_ad._current_level >= 0
    )


def redone(*gradients: Tensor | None) -> bool:
    """Return whether a backward pass is differentiated in turn, or vectorized.

    It then takes the plain formula.

    Args:
        gradients: those that it was given.
    """
    batched = torch._C._functorch.is_legacy_batchedtensor
    return (
        torch.is_grad_enabled()
        or torch._C._are_functorch_transforms_active()
        or any(one is not None and batched(one) for one in gradients)
    )


def bare(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Return whether calling a module only applies its weights: adapters and hooks need a call."""
    hooks = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
    called = is_replaced(module) or any(hooks) or _has_any_global_hook()
    return type(module) is kind and not called


def is_replaced(module: nn.Module) -> bool:
    """Return whether a call of a module runs more than its class says.

    accelerate brings its weights in so, where they are offloaded.
    """
    return "forward" in vars(module)


def again(
    plain: Callable[..., Any], inputs: Sequence[Tensor], gradients: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    """Return a gradient that itself has a derivative: of the plain formula, by autograd.

    What is frozen gets none, and gives none to the outputs that hang on it alone.
    """
    with torch.enable_grad():
        # Views, since one input may be made of another, and each gets its own share alone.
        inputs = [one.view_as(one) for one in inputs]
        outputs = plain(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    given = [
        (one, gradient)
        for one, gradient in zip(outputs, gradients, strict=True)
        if gradient is not None and one.requires_grad
    ]
    if not given:
        return (None,) * len(inputs)
    wanted = [one for one in inputs if one.requires_grad]
    kept, slopes = zip(*given, strict=True)
    found = iter(
        torch.autograd.grad(kept, wanted, slopes, create_graph=True, materialize_grads=True)
    )
    return tuple(next(found) if one.requires_grad else None for one in inputs)
