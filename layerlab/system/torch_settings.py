"""Settings of torch, and of a model, that hold for the length of a block, and are put back."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import psutil
import torch
from torch import nn

# What products of float32 matrices are computed in.
_PRODUCTS = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
# Below this the matrices of a block are too small to share: handing them over costs more.
SMALL_PARAMETERS = 20_000_000


@contextmanager
def float32_products() -> Iterator[None]:
    """Multiply float32 matrices in float32 for a block, where training allows TF32 or bfloat16.

    Bounds that are certified for float32 would else not hold. Also a decorator.
    """
    before, by_backend = "highest", [one.fp32_precision for one in _PRODUCTS]
    with suppress(RuntimeError):  # which says that it was set for one backend alone
        before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        for one, precision in zip(_PRODUCTS, by_backend, strict=True):
            one.fp32_precision = precision


@contextmanager
def usual_arithmetic() -> Iterator[None]:
    """Put away autocast, TF32, the inference mode, and another default dtype or device for a block.

    What is measured would else be that of an arithmetic which no report names. Also a decorator.

    Example:
        >>> with torch.autocast("cpu", torch.bfloat16), usual_arithmetic():
        ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
        torch.float32
    """
    before = torch.get_default_dtype()
    kinds = {"cpu"}
    if (accelerator := torch.accelerator.current_accelerator()) is not None:
        kinds.add(accelerator.type)
    with ExitStack() as stack:
        for kind in kinds:
            if torch.is_autocast_enabled(kind):
                # What is cast is kept until the outermost block ends: within this one, weights that
                # learn would stay what they were at first.
                off = torch.autocast(kind, enabled=False, cache_enabled=False)
                stack.enter_context(off)
        stack.enter_context(float32_products())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        torch.set_default_dtype(torch.float32)
        stack.callback(torch.set_default_dtype, before)
        if torch.get_default_device().type != "cpu":  # a device that is set slows every operation
            stack.enter_context(torch.device("cpu"))
        yield


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, and each of its modules back when the block ends.

    Dropout would else be measured as if it were the model's.
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def parameter_gradients(model: nn.Module, *, wanted: bool) -> Iterator[None]:
    """Have all parameters of a model ask for a gradient, or none of them, until the block ends.

    By name: accelerate puts others in the place of those that it brings and takes away again.
    """
    every = model.named_parameters(remove_duplicate=False)
    before = {path: one.requires_grad for path, one in every if one.is_floating_point()}
    try:
        for path in before:
            _ask_gradient(model.get_parameter(path), wanted)
        yield
    finally:
        for path, asked in before.items():
            _ask_gradient(model.get_parameter(path), asked)


def _ask_gradient(parameter: nn.Parameter, asked: bool) -> None:
    # Of a parameter that was made in the inference mode it can be set only there.
    with torch.inference_mode(parameter.is_inference()):
        parameter.requires_grad_(asked)


@contextmanager
def threads(parameters: int) -> Iterator[int]:
    """Use one thread for a small model, one per physical core for a large one.

    OMP_NUM_THREADS, where it is set, is obeyed.

    Args:
        parameters: of the model.
    """
    before = torch.get_num_threads()
    if "OMP_NUM_THREADS" not in os.environ:
        cores = psutil.cpu_count(logical=False) or before
        torch.set_num_threads(1 if parameters < SMALL_PARAMETERS else min(cores, before))
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)
