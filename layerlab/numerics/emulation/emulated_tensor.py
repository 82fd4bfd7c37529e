"""Tensors that say one dtype and hold another: how a model's own code is run in any arithmetic.

Model code asks its tensors for their dtype: it widens to float32 inside norms and softmax, and goes
back to what it was given. An `EmulatedTensor` answers with that *nominal* dtype while its values
are *held* in a wider one, where each operation is done. What becomes of a result, and so which
arithmetic is emulated, is up to the mode that runs (`EmulationMode.settle`).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, repeat
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_map

from layerlab.errors import UserError
from layerlab.system.offload import check_unquantized

# Namespaces of PyTorch's own operations; what is elsewhere is somebody's kernel.
OWN = frozenset({"aten", "prims", "prim", "_c10d_functional"})
# Operations that answer with a dtype, which has to be the nominal one.
ASKING = frozenset({"promote_types", "result_type", "can_cast"})
# Their third argument widens a half to float32, as CUDA does within the operation.
SOFTMAX = frozenset({"_softmax", "_log_softmax"})
# Done here, in any dtype; PyTorch takes fewer dtypes for it on the meta device than elsewhere.
GROUPED = "_grouped_mm"
Dtypes = tuple[torch.dtype, ...]
# By kind of call, what PyTorch has answered.
_TAKEN: dict[Any, tuple[Dtypes, bool]] = {}


class EmulatedTensor(Tensor):
    """A tensor of a nominal dtype whose values are held in another.

    Attributes:
        held: the values.
        weight: whether it is a parameter or a view of one.
        spread: what a mode knows of the error of each value, None for none.
        whole: the integers that it was cast from, if that is how it was made.
        lanes: the values in each of several runs side by side, where they differ.
        root: the carrier in whose memory its values lie, where a mode asks for it.
        views: of a root, carriers whose values lie in its memory.
        unrounded: the values before they were rounded, by run, where one asks for them.
        stream: whether it is of the residual stream, where a mode asks for it.
    """

    held: Tensor
    lanes: Sequence[Tensor] | None = None
    root: "EmulatedTensor | None" = None
    views: Sequence[ref["EmulatedTensor"]] = ()
    unrounded: Mapping[int, Tensor] | None = None
    stream: bool = False
    weight: bool
    spread: Tensor | None
    whole: Tensor | None

    @staticmethod
    def __new__(cls, values: Tensor, nominal: torch.dtype) -> "EmulatedTensor":
        return torch.Tensor._make_wrapper_subclass(
            cls,
            values.shape,
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=nominal,
            device=values.device,
        )

    def __init__(self, values: Tensor, nominal: torch.dtype) -> None:
        self.held = values
        self.weight = False
        self.spread = None
        self.whole = None

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"EmulatedTensor({self.held!r}, nominal={self.dtype})"

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation on the held values, which a carrier counts as outside its mode."""
        return func(*tree_map(unwrap, tuple(args)), **tree_map(unwrap, kwargs or {}))


def unwrap(value: Any) -> Any:
    """Return the values of a carrier, or anything else as it is."""
    return value.held if isinstance(value, EmulatedTensor) else value


def shares_memory(values: Tensor, given: Sequence[Any]) -> bool:
    """Return whether a result lies in the memory of an argument."""
    alias = torch._C._is_alias_of  # type: ignore[attr-defined]
    return any(alias(values, unwrap(value)) for value in given)


def relabel(value: Tensor, nominal: torch.dtype) -> Tensor:
    """Return the values of a carrier under another dtype, without a copy; others are cast."""
    if isinstance(value, EmulatedTensor):
        return EmulatedTensor(value.held, nominal)
    return value.to(nominal)


def relabels(args: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Return whether a copy of a carrier differs from it in nothing but its nominal dtype."""
    dtype = options.get("dtype")
    return (
        isinstance(args[0], EmulatedTensor)
        and len(options) == 1
        and bool(dtype and dtype.is_floating_point)
    )


def floating(value: Any) -> bool:
    """Return whether something is a tensor of floating numbers."""
    return isinstance(value, Tensor) and value.dtype.is_floating_point


class LeaveCarrier(torch.autograd.Function):
    """From a carrier to a plain tensor, and for its gradient the way back."""

    @staticmethod
    def forward(ctx: Any, value: EmulatedTensor) -> Tensor:
        ctx.nominal = value.dtype
        with _disable_current_modes():
            return value.held.detach().clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (gradient,) = gradients
        if isinstance(gradient, EmulatedTensor):
            return gradient
        return EmulatedTensor(gradient, ctx.nominal)


def plain(output: Any) -> Any:
    """Return a model's output with plain tensors in place of its carriers."""
    return tree_map(lambda x: LeaveCarrier.apply(x) if isinstance(x, EmulatedTensor) else x, output)


@contextmanager
def stepwise(model: nn.Module) -> Iterator[None]:
    """Run recurrent layers one step at a time.

    Those of oneDNN are one kernel, and have no float64.
    """
    before = torch._C._get_mkldnn_enabled()
    recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
    torch._C._set_mkldnn_enabled(before and not recurrent)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def check_runnable(model: nn.Module) -> None:
    """Refuse an emulation that could not run, before it begins.

    Raises:
        UserError: no plain weights, or a kernel that is one with the model.
    """
    name = type(model).__name__
    check_unquantized(model)
    kind = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if kind == "flex_attention":
        raise UserError(
            f"{name} uses flex_attention, which cannot be looked into; type"
            " model.set_attn_implementation('sdpa')"
        )


class EmulationMode(TorchDispatchMode, ABC):
    """Runs every operation on the held values, and says what dtype the code would have seen.

    Args:
        wide: dtype that the values are held in.
    """

    def __init__(self, wide: torch.dtype) -> None:
        super().__init__()
        self.wide = wide
        self._refused: dict[Any, tuple[Dtypes, bool]] = {}

    @abstractmethod
    def settle(self, func: Any, inputs: Sequence[Any], outputs: Sequence[EmulatedTensor]) -> None:
        """Turn the raw results into those of the emulated arithmetic.

        Args:
            func: the operation.
            inputs: its arguments, flat.
            outputs: its floating results; their `unwrap` may be replaced.
        """

    def note(self, func: Any, inputs: Sequence[Any], outputs: Sequence[EmulatedTensor]) -> None:
        """Take note of an operation before its results are settled."""

    def _finish(self, func: Any, inputs: Sequence[Any], outputs: Sequence[EmulatedTensor]) -> None:
        self.note(func, inputs, outputs)
        self.settle(func, inputs, outputs)

    def refuse(self, func: Any) -> None:
        """Take note of an operation that torch would refuse on such dtypes."""

    def compute(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Compute the operation on the held values."""
        return func(*self.inner(args), **self.inner(kwargs))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        return self.dispatch(func, args, kwargs or {})

    def dispatch(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an operation; torch wraps what is called `__torch_dispatch__` in every class."""
        flat = list(leaves(args)) + list(leaves(kwargs.values()))
        if func._opname in ASKING:
            return func(*_shadows(args), **_shadows(kwargs))
        if not _concerns(flat):
            return self._make(func, flat, self.compute(func, args, kwargs))
        if func.namespace not in OWN:
            raise UserError(
                f"{func} is a kernel of its own: what it rounds inside cannot be emulated; load the"
                " model without it (attn_implementation='eager', no custom kernels)"
            )
        if writes_in_place(func):
            return self._write(func, flat, args, kwargs)
        dtypes, accepted = self._nominal(func, flat, args, kwargs)
        if func._opname in SOFTMAX:
            args, kwargs = (*args[:2], False), {}  # what is held is no half, and has its width
        outputs: list[EmulatedTensor] = []
        wrapped = _wrap(self.compute(func, args, kwargs), _endless(dtypes), outputs)
        if not accepted:
            self.refuse(func)
        if outputs:
            self._finish(func, flat, outputs)
        return wrapped

    def _make(self, func: Any, flat: list[Any], result: Any) -> Any:
        """Wrap the results of an operation without floating arguments.

        Numbers count as of their dtype.
        """
        outputs: list[EmulatedTensor] = []
        asked = [value for value in flat if isinstance(value, torch.dtype)]

        def carry(value: Any) -> Any:
            if not floating(value):
                return value
            nominal = asked[0] if asked else value.dtype
            outputs.append(EmulatedTensor(value.to(self.wide), nominal))
            outputs[-1].whole = flat[0] if func._opname == "_to_copy" else None
            return outputs[-1]

        wrapped = tree_map(carry, result)
        if outputs:
            self._finish(func, flat, outputs)
        return wrapped

    def _write(self, func: Any, flat: list[Any], args: Any, kwargs: Any) -> Any:
        """Run an operation in place: it writes into a carrier's values or into a plain tensor."""
        target = kwargs.get("out", args[0] if args else None)
        if not isinstance(target, Tensor):
            raise UserError(
                f"{func} writes into several tensors at once, which emulation does not follow; use"
                " the form of the operation that returns new tensors"
            )
        if not isinstance(target, EmulatedTensor):
            return self._write_plain(func, flat, target, args, kwargs)
        self.compute(func, args, kwargs)
        settled = EmulatedTensor(target.held, target.dtype)
        self._finish(func, flat, [settled])
        if settled.held is not target.held:
            target.held.copy_(settled.held)
        target.spread, target.unrounded = settled.spread, settled.unrounded
        return target

    def _write_plain(self, func: Any, flat: Any, target: Tensor, args: Any, kwargs: Any) -> Tensor:
        """Write into a tensor made before the mode.

        The result is computed on a carrier and copied back.
        """
        if not target.dtype.is_floating_point:
            self.compute(func, args, kwargs)
            return target
        stand_in = EmulatedTensor(target.to(self.wide, copy=True), target.dtype)

        def swap(value: Any) -> Any:
            return stand_in if value is target else value

        self._write(func, flat, tree_map(swap, tuple(args)), tree_map(swap, dict(kwargs)))
        target.copy_(stand_in.held)
        return target

    def inner(self, value: Any) -> Any:
        """Return the arguments as the held computation needs them: wide tensors, wide dtypes."""
        if isinstance(value, EmulatedTensor):
            return value.held
        if isinstance(value, Tensor):
            return value.to(self.wide) if value.dtype.is_floating_point else value
        if isinstance(value, torch.dtype):
            return self.wide if value.is_floating_point else value
        if isinstance(value, (list, tuple)):
            return type(value)(self.inner(item) for item in value)
        if isinstance(value, dict):
            return {name: self.inner(item) for name, item in value.items()}
        return value

    def _nominal(self, func: Any, flat: list[Any], args: Any, kwargs: Any) -> tuple[Dtypes, bool]:
        """Return the dtypes that PyTorch gives the results, and whether it takes the arguments.

        The meta device is asked once for each kind of call.
        """
        key = (func, torch.get_default_dtype(), *(_kind(value) for value in flat), *kwargs)
        answer = _TAKEN.get(key) or self._refused.get(key)
        if answer is None:
            answer = _ask(func, flat, args, kwargs)
            # What it refuses may have been the shapes of this model.
            (_TAKEN if answer[1] else self._refused)[key] = answer
        return answer


def leaves(values: Iterable[Any]) -> Iterable[Any]:
    """Yield the leaves of nested lists."""
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from leaves(value)
        else:
            yield value


def _concerns(flat: Iterable[Any]) -> bool:
    """Return whether any argument is a floating tensor."""
    return any(isinstance(value, Tensor) and value.dtype.is_floating_point for value in flat)


def writes_in_place(func: Any) -> bool:
    """Return whether an operation writes into one of its arguments."""
    return bool(func._schema.is_mutable)


def _kind(value: Any) -> Any:
    """Return what an argument contributes to the choice of the result's dtype."""
    if isinstance(value, Tensor):
        return value.dtype, value.dim() == 0
    return value if isinstance(value, (torch.dtype, bool)) else type(value)


def _ask(func: Any, flat: list[Any], args: Any, kwargs: Any) -> tuple[Dtypes, bool]:
    if func._opname == GROUPED:
        dtypes = {value.dtype for value in flat if floating(value)}
        return (_promote(flat),), len(dtypes) == 1
    try:
        result = func(*_shadows(args), **_shadows(kwargs))
    except NotImplementedError:
        # Shapes that depend on values: such operations select, so the dtype is that of the input.
        return (_promote(flat),), True
    except RuntimeError:
        return (_promote(flat),), False
    return tuple(value.dtype for value in leaves([result]) if floating(value)), True


def _shadows(arguments: Any) -> Any:
    """Return the arguments with tensors that have only a shape and a dtype."""

    def shadow(value: Any) -> Any:
        if isinstance(value, Tensor):
            return torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device="meta"
            )
        return torch.device("meta") if isinstance(value, torch.device) else value

    return tree_map(shadow, arguments)


def _promote(flat: list[Any]) -> torch.dtype:
    dtypes = [value.dtype for value in flat if floating(value)]
    first, *others = dtypes
    for dtype in others:
        first = torch.promote_types(first, dtype)
    return first


def _endless(dtypes: Dtypes) -> Iterator[torch.dtype]:
    """Return the dtypes of the results, the last of them repeated without end."""
    return chain(dtypes, repeat(dtypes[-1])) if dtypes else iter(())


def _wrap(result: Any, dtypes: Any, outputs: list[EmulatedTensor]) -> Any:
    if floating(result):
        outputs.append(EmulatedTensor(result, next(dtypes)))
        return outputs[-1]
    if isinstance(result, (list, tuple)):
        return type(result)(_wrap(item, dtypes, outputs) for item in result)
    return result
