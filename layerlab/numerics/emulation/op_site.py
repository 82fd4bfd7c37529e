"""Sites of operations in a model: the module whose code is running, and the operation.

A place is written `module:operation`, as in `model.layers.3.self_attn:softmax`; a module without
parts of its own is one place however many operations its code takes. Backward passes are placed by
the forward operation that they belong to.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from layerlab.system.hooks import temporary_hooks

# Operations that only move, choose or count values: nothing to round unless something is narrowed.
EXACT = frozenset(
    """_to_copy _unsafe_view abs alias amax amin cat clamp clone constant_pad_nd contiguous copy
    copy_ detach embedding expand fill fill_ flip gather histc index index_put index_put_
    index_select lift_fresh masked_fill masked_fill_ max maximum min minimum neg new_empty
    new_full new_ones new_zeros ones_like permute relu repeat repeat_interleave roll scatter
    select select_backward slice slice_backward sort split split_with_sizes squeeze stack t
    threshold_backward topk transpose tril triu unbind unsqueeze view where zero_
    zeros_like""".split()
)
# Of these, what adds to the values that are there, if it is asked to.
ADDING = frozenset({"index_put", "index_put_"})
# Views of a parameter are the parameter still.
VIEWS = frozenset(
    """alias expand permute select slice split split_with_sizes squeeze t transpose unbind unsqueeze
    view""".split()
)
PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "linear", "_grouped_mm", "mv", "addmv"})
# After one of these in an attention module, a product of two results is that with the values.
WEIGHING = frozenset({"_softmax", "softmax", "exp", "_safe_softmax"})
# What a softmax is made of where it is taken apart, between a product with keys and after it.
STEPS = frozenset({"amax", "sub", "exp", "sum"})
# Spellings of one operation.
SAME = {
    "_softmax": "softmax",
    "_safe_softmax": "softmax",
    "_to_copy": "cast",
    "rsub": "sub",
    "pow": "power",
    "mm": "product",
    "addmm": "product",
    "linear": "product",
    "_grouped_mm": "product",
    "bmm": "product",
    "baddbmm": "product",
    "mv": "product",
    "addmv": "product",
}
# The products that may be attention's: those of results with one another.
PAIRS = frozenset({"bmm", "baddbmm", "mv", "addmv"})
# How far an attention module has come.
SCORED, WEIGHED, MIXED = 1, 2, 3
# What the code of attention calls; a mask for attention, or a cache of it, is no sign of any.
WORD = re.compile(
    r"softmax|attention_functions?$|attention_(forward|interface)|dot_product_attention"
)
NUMBER = re.compile(r"(?<=\.)\d+(?=[.:]|$)")


def moves(func: Any, inputs: Sequence[Any]) -> bool:
    """Return whether an operation makes no value that it was not given.

    Args:
        func: the operation.
        inputs: its arguments, flat.
    """
    adds = func._opname in ADDING and inputs[-1] is True
    return func._opname in EXACT and not adds


class OpSite(NamedTuple):
    """A module by its path and what is done there; an empty operation is the whole module."""

    module: str
    operation: str = ""

    def __str__(self) -> str:
        return f"{self.module}:{self.operation}" if self.operation else self.module

    @property
    def component(self) -> str:
        """Return the same place in every layer: its name with `*` for the layer's number."""
        return NUMBER.sub("*", str(self), count=1)

    @property
    def layer(self) -> int | None:
        """Return the number of the layer that the place lies in; None outside the stack."""
        found = NUMBER.search(self.module)
        return int(found.group()) if found else None


class Tracker:
    """Follows the modules of one model as their forward passes begin and end.

    Attributes:
        weighted: whether the operation that is about to be placed multiplies with a parameter.

    Args:
        model: whose modules are named.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.weighted = False
        self._stack: list[tuple[str, bool]] = [("", False)]
        self._stage: list[int] = [0]
        self._attends: dict[str, bool] = {}
        self._nodes: dict[int, OpSite] = {}
        self._whole: Any = None

    @contextmanager
    def inside(self, func: Any) -> Iterator[None]:
        """Place all operations of the block as the one that they are steps of."""
        self._whole = func
        try:
            yield
        finally:
            self._whole = None

    @contextmanager
    def follow(self) -> Iterator[None]:
        try:
            with temporary_hooks(self._listen()):
                yield
        finally:
            del self._stack[1:], self._stage[1:]
            self._stage[0] = 0
            self._nodes.clear()

    def _listen(self) -> Iterator[RemovableHandle]:
        """Yield the hooks as they are set: nobody knows where Ctrl-C comes."""
        for name, module in self.model.named_modules():
            leaf = bool(name) and next(module.children(), None) is None
            yield module.register_forward_pre_hook(self._entering(name, leaf))
            yield module.register_forward_hook(self._leaving(name), always_call=True)

    def _entering(self, name: str, leaf: bool) -> Any:
        def enter(module: nn.Module, args: Any) -> None:
            self._stack.append((name, leaf))
            self._stage.append(0)

        return enter

    def _leaving(self, name: str) -> Any:
        def leave(module: nn.Module, args: Any, output: Any) -> None:
            # A hook that failed before may have kept the module from being entered.
            if len(self._stack) > 1 and self._stack[-1][0] == name:
                self._stack.pop()
                self._stage.pop()

        return leave

    def mark(self) -> Callable[[], None]:
        """Return what begins the attention of the running module anew, as for other heads."""
        return partial(self._stage.__setitem__, -1, self._stage[-1])

    def place(self, func: Any) -> OpSite:
        """Return the place that the running operation belongs to."""
        node = torch._C._current_autograd_node()
        if node is not None:
            return self._nodes.get(node._sequence_nr(), OpSite("backward"))
        name = (self._whole or func)._schema.name
        site = self._forward(name.partition("::")[2])
        if torch.is_grad_enabled():
            # The node of this operation has just taken the number before the next one.
            self._nodes[torch.autograd._get_sequence_nr() - 1] = site
        return site

    def _forward(self, name: str) -> OpSite:
        module, leaf = self._stack[-1]
        # A softmax may be a module of its own inside the one that attends.
        level = -2 if leaf else -1
        if name in WEIGHING and self._stage[level] >= SCORED:
            self._stage[level] = WEIGHED
        if leaf:
            return OpSite(module)
        if name in PAIRS and not self.weighted and self._may_attend(module):
            return OpSite(module, self._attending())
        name = name.rstrip("_")
        if self._stage[-1] >= SCORED and name in STEPS:
            return OpSite(module, "softmax")
        if self._stage[-1] == MIXED and name == "div":
            return OpSite(module, "softmax")
        # Scaled, capped, biased or masked, they are the scores still.
        if self._stage[-1] == SCORED:
            return OpSite(module, "scores")
        return OpSite(module, SAME.get(name, name.lstrip("_")))

    def _may_attend(self, name: str) -> bool:
        if name not in self._attends:
            self._attends[name] = attends(self.model.get_submodule(name))
        return self._attends[name]

    def _attending(self) -> str:
        """Return which of attention's two products this is: the one before or after its softmax."""
        before = self._stage[-1] < WEIGHED
        self._stage[-1] = SCORED if before else MIXED
        return "scores" if before else "context"


def attends(module: nn.Module) -> bool:
    """Return whether the forward pass of a module, or a function that it calls, names a softmax.

    What its parts do is theirs, but for a part that is a softmax.
    """
    if any(isinstance(part, nn.Softmax) for part in module.children()):
        return True
    return _says("forward", _find(module, "forward"), module, set())


def _says(name: str, value: Any, module: nn.Module, seen: set[Any]) -> bool:
    """Return whether a name, or the code that it stands for, mentions a softmax."""
    while isinstance(value, partial):
        value = value.func
    if WORD.search(name.lower()) or WORD.search(str(getattr(value, "__name__", "")).lower()):
        return True
    function = _function(value)
    if function is None or function in seen or function.__module__.partition(".")[0] == "torch":
        return False
    seen.add(function)
    around = _enclose(function)
    for word in {*_names(function.__code__), *around}:
        meant = around.get(word, function.__globals__.get(word))
        if _says(word, _find(module, word) if meant is None else meant, module, seen):
            return True
    return False


def _enclose(function: FunctionType) -> dict[str, Any]:
    """Return the variables that a function takes from the enclosing one.

    A decorated function has what it decorates there.
    """
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # not yet filled
            found[name] = cell.cell_contents
    return found


def _names(code: CodeType) -> Iterator[str]:
    """Yield the globals and attributes that a piece of code and its inner functions mention."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _find(module: nn.Module, name: str) -> Any:
    """Find an attribute of a module without running a property."""
    return inspect.getattr_static(module, name, None)


def _function(value: Any) -> FunctionType | None:
    if isinstance(value, (staticmethod, classmethod, MethodType)):
        value = value.__func__
    value = inspect.unwrap(value) if isinstance(value, FunctionType) else value
    return value if isinstance(value, FunctionType) else None
