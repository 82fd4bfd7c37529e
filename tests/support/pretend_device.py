"""A fake accelerator: the processor computes for it, and refuses to mix it with its own tensors.

What runs here on `"pretend"` finds, without a GPU, every tensor that was made on the processor and
given to an operation beside one of the device. Its generators are the processor's. Torch registers
a device once and for good, so that this is imported in processes of its own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from layerlab.numerics.emulation.weight_rows import WeightRows

NAME = "pretend"
# As on a GPU, these take a tensor of the processor's: copies, and indices of what lies there.
CROSSING = {"_to_copy", "copy_"}
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
# A GPU multiplies no whole numbers.
PRODUCTS = {"mm", "bmm", "addmm", "baddbmm", "mv", "dot", "addmv"}


class Backend:
    """The parts of a device's module that torch asks for."""

    def is_available(self):
        return True

    def is_initialized(self):
        return True

    def _is_in_bad_fork(self):
        return False

    def current_device(self):
        return 0

    def device_count(self):
        return 1

    def manual_seed_all(self, seed):
        pass

    def get_amp_supported_dtype(self):
        return [torch.bfloat16, torch.float16]


_setup_privateuseone_for_python_backend(NAME, Backend())
HOME = torch.device(NAME, 0)


class There(Tensor):
    """A tensor that says it lies on the device; the processor holds its numbers."""

    @staticmethod
    def __new__(cls, held):
        made = Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=HOME,
            requires_grad=held.requires_grad,
        )
        made.held = held.detach()
        return made

    def __init__(self, held):
        pass

    def __repr__(self):
        return f"There({self.held!r})"

    def __deepcopy__(self, memo):
        return memo.setdefault(id(self), There(self.held.clone()))

    def data_ptr(self):
        return self.held.data_ptr()

    def untyped_storage(self):
        return self.held.untyped_storage()

    def tolist(self):
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if WeightRows in types:
            return NotImplemented
        return run(func, args, kwargs or {})


class Pretending(TorchDispatchMode):
    """Makes tensors on the device where they are asked for there."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if WeightRows in types:  # asks for what it is made of by itself
            return func(*args, **(kwargs or {}))
        return run(func, args, kwargs or {})


def is_there(device):
    return device is not None and torch.device(device).type == NAME


def held(value):
    return value.held if isinstance(value, There) else value


def run(func, args, kwargs):
    """Let the processor do an operation, and say that its results lie where its arguments do."""
    there = [one for one in tree_leaves((args, kwargs)) if isinstance(one, There)]
    name, asked = func._opname, kwargs.get("device")
    if there and name in INDEXING and isinstance(args[0], There):
        refuse_other_devices(func, args[2:])
    elif there and name not in CROSSING:
        refuse_other_devices(func, tree_leaves((args, kwargs)))
    if there and name in PRODUCTS and not args[0].dtype.is_floating_point:
        raise RuntimeError(f"{func} of {HOME} was given {args[0].dtype}")
    given, options = tree_map(held, (args, kwargs))
    if is_there(asked):
        options = {**options, "device": torch.device("cpu")}
    if name == "histc" and there:  # a GPU counts whole numbers, too
        result = func(given[0].double(), *given[1:], **options).to(given[0].dtype)
    else:
        result = func(*given, **options)
    if torch.Tag.inplace_view in func.tags and there:
        with no_dispatch():
            func(*args, **kwargs)  # the shape that the tensor itself says it has
        return args[0]
    if asked is not None and there and not is_there(asked):
        return result.clone()
    stays = is_there(asked) if asked is not None else bool(there)
    if name == "copy_":
        stays = isinstance(args[0], There)
    written = {id(one.held): one for one in there}

    def wrap(value):
        if not isinstance(value, Tensor) or isinstance(value, There):
            return value
        if id(value) in written:
            return written[id(value)]
        return There(value) if stays else value

    return tree_map(wrap, result)


def refuse_other_devices(func, values):
    for value in values:
        # Numbers may come from anywhere.
        if isinstance(value, Tensor) and not isinstance(value, There) and value.dim():
            shape = tuple(value.shape)
            raise RuntimeError(f"{func} of {HOME} was given a {shape} of {value.device}")


def make_empty(size, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    return There(torch.empty(size, dtype=dtype))


def make_strided(size, stride, dtype=None, layout=None, device=None, pin_memory=None):
    return There(torch.empty_strided(size, stride, dtype=dtype))


def copy_between(source, target, non_blocking=False):
    held(target).copy_(held(source))
    return target


OWN = torch.library.Library("aten", "IMPL")
OWN.impl("empty.memory_format", make_empty, "PrivateUse1")
OWN.impl("empty_strided", make_strided, "PrivateUse1")
OWN.impl("_copy_from", copy_between, "PrivateUse1")
ALL = torch.library.Library("_", "IMPL")
ALL.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")


class Generator(torch.Generator):
    """A generator of the processor's, whatever device it was asked for."""

    def __new__(cls, device="cpu"):
        return super().__new__(cls, "cpu" if is_there(device) else device)


@contextmanager
def pretending() -> Iterator[None]:
    """Let `"pretend"` be a device that modules and tensors can be moved to."""
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        with patch.object(torch, "Generator", Generator), Pretending():
            yield
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
