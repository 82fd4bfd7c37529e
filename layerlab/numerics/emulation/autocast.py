"""Torch's own autocast around an emulated model.

Which operations are done in the low dtype, which in float32 and which in the widest dtype that they
are given is written down in torch, by device, and changes with its version. So nothing is copied
here: parameters are nominally float32, and `torch.autocast` itself runs around the forward pass and
inserts its casts, which are then rounded as the casts of the model's own code are.

Only where the rules of a GPU are asked for on a CPU, what they have beyond the CPU's is added by
name, from torch's `aten/src/ATen/autocast_mode.h`. What is cast on a CPU alone (pooling, Fourier
transforms, decompositions) is cast then, too; Transformers have none of it.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from layerlab.errors import UserError
from layerlab.system.hooks import temporary_hooks
from layerlab.system.offload import running_device

# What torch.autocast casts to, on every device; it refuses others.
FORMATS = ("bf16", "fp16")
DEVICES = ("cpu", "cuda")
# What CUDA does in float32, in the low dtype, and in the widest dtype given, and a CPU as given.
SINGLE = frozenset(
    """acos asin cosh cosine_similarity cumprod cumsum dist erfinv exp expm1 group_norm interpolate
    layer_norm linalg_matrix_norm linalg_norm linalg_vector_norm log log10 log1p log2 log_softmax
    logsumexp norm normalize pdist pow reciprocal renorm rpow rsqrt sinh
    softmax softmin softplus sum tan""".split()
)
if torch._C._dispatch_has_kernel_for_dispatch_key("aten::rms_norm", "AutocastCUDA"):
    SINGLE |= {"rms_norm"}  # torch 2.11 leaves it as it is given
LOWER = frozenset("addmv addr linalg_multi_dot mv".split())
WIDEST = frozenset(
    "addcdiv addcmul atan2 bilinear cross dot index_put scatter_add tensordot vdot".split()
)


class Cuda(TorchFunctionMode):
    """The casts of CUDA's autocast beyond the CPU's, wherever that of the CPU is enabled."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = args, kwargs or {}
        name = getattr(func, "__name__", "")
        name = name[2:-2] if name.startswith("__") else name
        if not torch.is_autocast_enabled("cpu"):
            dtype = None
        elif name in SINGLE:
            dtype = torch.float32
        elif name in LOWER:
            dtype = torch.get_autocast_dtype("cpu")
        else:
            dtype = _widest(given) if name in WIDEST else None
        if dtype is None:
            return func(*args, **given[1])
        args, kwargs = _to(given, dtype)
        with torch._C._DisableAutocast():
            return func(*args, **kwargs)


@contextmanager
def autocasting(model: nn.Module, dtype: torch.dtype, device: str | None) -> Iterator[None]:
    """Run every forward pass of a model under autocast until the block ends.

    What is made of its outputs, and the backward pass, are outside, where torch's documentation
    wants them.

    Args:
        device: whose rules; those of the device that the parameters are on if None.

    Raises:
        UserError: the rules of a CPU for a model that is elsewhere.
    """
    own = running_device(model).type
    if device not in (None, own) and own != "cpu":
        raise UserError(
            f"device={device!r}, but the model is on {own}, where only the rules of {own} run; type"
            " model.cpu() first"
        )
    entered: list[ExitStack] = []

    def enter(module: nn.Module, args: Any) -> None:
        entered.append(ExitStack())
        entered[-1].enter_context(torch.autocast(own, dtype=dtype))
        if device == "cuda" != own:
            entered[-1].enter_context(Cuda())

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        # A hook that failed before this one entered leaves nothing to end.
        if entered:
            entered.pop().close()

    handles = (
        model.register_forward_pre_hook(enter, prepend=True),
        model.register_forward_hook(leave, always_call=True),
    )
    with temporary_hooks(handles):
        yield


def lower(arguments: Any) -> Any:
    """Cast arguments as autocast hands them to an operation of the low dtype.

    Without autocast they stay as they are.

    As they are without it.
    """
    kind = next((value.device.type for value in tree_leaves(arguments) if _cast(value)), "cpu")
    if not torch.is_autocast_enabled(kind):
        return arguments
    return _to(arguments, torch.get_autocast_dtype(kind))


def _cast(value: Any) -> bool:
    """Return whether autocast casts a value; it leaves float64."""
    floats = isinstance(value, Tensor) and value.dtype.is_floating_point
    return floats and value.dtype != torch.float64


def _to(arguments: Any, dtype: torch.dtype) -> Any:
    return tree_map(lambda value: value.to(dtype) if _cast(value) else value, arguments)


def _widest(arguments: Any) -> torch.dtype | None:
    """Return the widest dtype among those that autocast casts; None where there is none."""
    dtypes = [value.dtype for value in tree_leaves(arguments) if _cast(value)]
    return reduce(torch.promote_types, dtypes) if dtypes else None
