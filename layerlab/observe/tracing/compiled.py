"""Compiled code calls no hooks: whether a model has any, and how it is run without."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn


def is_compiled(model: nn.Module) -> bool:
    """Return whether a model, a part of it, or the forward of one is compiled."""
    names = ("_compiled_call_impl", "_orig_mod")
    return any(
        hasattr(vars(part).get("forward"), "_torchdynamo_orig_callable")
        or any(getattr(part, name, None) for name in names)
        for part in model.modules()
    )


def run_uncompiled(model: nn.Module) -> AbstractContextManager[Any]:
    """Run the compiled parts of a model uncompiled, where their hooks are called."""
    if not is_compiled(model):
        return nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance
