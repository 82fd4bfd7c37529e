"""Choice of the kernel that rounds a tensor, in one place.

On a CPU that of `rounding.cpp`, on a GPU those in Triton, each where it is there, and pure torch
everywhere else: on other devices, under torch.compile, which fuses what it reads, and inside
transforms of functions, whose tensors have no memory of their own.
"""

import os
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from layerlab.numerics.formats.grid import Grid, Mode
from layerlab.numerics.formats.kernel import OFF, Launch, kernel

# Types of devices that code in Triton is compiled for.
GPUS = ("cuda",)
HOME = "layerlab.numerics.formats.triton"
MODULES = ("kernel", "blocks", "integers")


@dataclass(frozen=True)
class GpuKernel:
    """The kernels in Triton, or why there are none.

    Attributes:
        reason: why there are none; None where they are there.
        scalar: the module that rounds each element by itself.
        blocks: the module that rounds blocks.
        integers: the module that rounds to whole numbers.
    """

    reason: str | None
    scalar: Any = None
    blocks: Any = None
    integers: Any = None


def gpu_kernel(device: torch.device | str = "cuda") -> GpuKernel:
    """Return the kernels in Triton, tried on a GPU; `LAYERLAB_KERNEL=0` turns them off."""
    return GpuKernel(OFF) if os.environ.get("LAYERLAB_KERNEL") == "0" else _import(str(device))


@lru_cache
def _import(device: str) -> GpuKernel:
    """Import the kernels, and try them on that GPU: another one may be full."""
    if find_spec("triton") is None:
        return GpuKernel("triton is not installed")
    try:
        scalar, *others = (import_module(f"{HOME}.{name}") for name in MODULES)
        if torch.cuda.is_available():
            scalar.check(device)
    # An older triton, no C compiler for its launcher, a driver that it does not know: whatever it
    # is, pure torch does the work, and `layerlab doctor` says why.
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return GpuKernel(f"triton cannot be used: {lines[-1]}")
    return GpuKernel(None, scalar, *others)


def has_memory(x: Tensor) -> bool:
    """Return whether a kernel may read the tensor where it lies."""
    return (
        type(x) is Tensor
        and not torch.compiler.is_compiling()
        and not torch._C._functorch.is_functorch_wrapped_tensor(x)
    )


def scalar_launch(numbers: Grid, mode: Mode, dtype: torch.dtype, device: torch.device) -> Any:
    """Return the kernel that rounds each element, ready to be called; None for pure torch."""
    if device.type in GPUS:
        module = gpu_kernel(device).scalar
        return module and module.TritonLaunch(numbers, mode, dtype)
    if device.type != "cpu":
        return None
    library = kernel().library
    return library and Launch(library, numbers, mode, dtype)


def kernels_with_scales(x: Tensor) -> GpuKernel:
    """Return the modules that find scales and round this tensor; none in it for pure torch."""
    if x.device.type in GPUS and has_memory(x):
        return gpu_kernel(x.device)
    return GpuKernel("not the memory of a GPU")
