"""Where in a model an operation happens: the module whose code is running, and what it does.

A place is written `module:operation`, as in `model.layers.3.self_attn:softmax`; a module without
parts of its own is one place however many operations its code takes. Backward passes are placed by
the forward operation that they belong to.
"""

import difflib
import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

import torch
from torch import nn

from layerlab import UserError
from layerlab.domain import shown

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


class Place(NamedTuple):
    """A module by its path and what is done there; an empty operation is the whole module."""

    module: str
    operation: str = ""

    def __str__(self) -> str:
        return f"{self.module}:{self.operation}" if self.operation else self.module

    @property
    def component(self) -> str:
        """The same place in every layer: its name with `*` for the layer's number."""
        return NUMBER.sub("*", str(self), count=1)

    @property
    def layer(self) -> int | None:
        """Number of the layer that it lies in; None outside the stack."""
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
        self._nodes: dict[int, Place] = {}

    @contextmanager
    def follow(self) -> Iterator[None]:
        handles = []
        for name, module in self.model.named_modules():
            leaf = bool(name) and next(module.children(), None) is None
            handles.append(module.register_forward_pre_hook(self._entering(name, leaf)))
            handles.append(module.register_forward_hook(self._left, always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            del self._stack[1:], self._stage[1:]
            self._stage[0] = 0
            self._nodes.clear()

    def _entering(self, name: str, leaf: bool) -> Any:
        def enter(module: nn.Module, args: Any) -> None:
            self._stack.append((name, leaf))
            self._stage.append(0)

        return enter

    def _left(self, module: nn.Module, args: Any, output: Any) -> None:
        self._stack.pop()
        self._stage.pop()

    def place(self, func: Any) -> Place:
        """Where the operation that is being run belongs."""
        node = torch._C._current_autograd_node()
        if node is not None:
            return self._nodes.get(node._sequence_nr(), Place("backward"))
        place = self._forward(func._schema.name.partition("::")[2])
        if torch.is_grad_enabled():
            # The node of this operation has just taken the number before the next one.
            self._nodes[torch.autograd._get_sequence_nr() - 1] = place
        return place

    def _forward(self, name: str) -> Place:
        module, leaf = self._stack[-1]
        # A softmax may be a module of its own inside the one that attends.
        level = -2 if leaf else -1
        if name in WEIGHING and self._stage[level] >= SCORED:
            self._stage[level] = WEIGHED
        if leaf:
            return Place(module)
        if name in PAIRS and not self.weighted and self._may_attend(module):
            return Place(module, self._attending())
        name = name.rstrip("_")
        if self._stage[-1] >= SCORED and name in STEPS:
            return Place(module, "softmax")
        if self._stage[-1] == MIXED and name == "div":
            return Place(module, "softmax")
        return Place(module, SAME.get(name, name.lstrip("_")))

    def _may_attend(self, name: str) -> bool:
        if name not in self._attends:
            self._attends[name] = attends(self.model.get_submodule(name))
        return self._attends[name]

    def _attending(self) -> str:
        """Which of attention's two products this is: before its softmax or after it."""
        before = self._stage[-1] < WEIGHED
        self._stage[-1] = SCORED if before else MIXED
        return "scores" if before else "context"


def attends(module: nn.Module) -> bool:
    """Whether the forward pass of a module, or a function that it calls, names a softmax.

    What its parts do is theirs, but for a part that is a softmax.

    Source: Own.
    """
    if any(isinstance(part, nn.Softmax) for part in module.children()):
        return True
    return _says("forward", _found(module, "forward"), module, set())


def _says(name: str, value: Any, module: nn.Module, seen: set[Any]) -> bool:
    """Whether a name, or the code that it stands for, speaks of a softmax."""
    while isinstance(value, partial):
        value = value.func
    if WORD.search(name.lower()) or WORD.search(str(getattr(value, "__name__", "")).lower()):
        return True
    function = _function(value)
    if function is None or function in seen or function.__module__.partition(".")[0] == "torch":
        return False
    seen.add(function)
    around = _enclosed(function)
    for word in {*_names(function.__code__), *around}:
        meant = around.get(word, function.__globals__.get(word))
        if _says(word, _found(module, word) if meant is None else meant, module, seen):
            return True
    return False


def _enclosed(function: FunctionType) -> dict[str, Any]:
    """What a function has from the one around it, as a decorated one has what it decorates."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # not yet filled
            found[name] = cell.cell_contents
    return found


def _names(code: CodeType) -> Iterator[str]:
    """Globals and attributes that a piece of code mentions, also inside functions of its own."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _found(module: nn.Module, name: str) -> Any:
    """An attribute of a module, without running what a property would."""
    return inspect.getattr_static(module, name, None)


def _function(value: Any) -> FunctionType | None:
    if isinstance(value, (staticmethod, classmethod, MethodType)):
        value = value.__func__
    value = inspect.unwrap(value) if isinstance(value, FunctionType) else value
    return value if isinstance(value, FunctionType) else None


def matches(place: Place, patterns: Sequence[str]) -> bool:
    """Whether one of the patterns names the place, its module, or a module around it.

    Source: Own.
    """
    spelled = (str(place), *_around(place.module))
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in spelled)


def _around(module: str) -> Iterator[str]:
    parts = module.split(".")
    return (".".join(parts[:end]) for end in range(len(parts), 0, -1))


class Selection:
    """Which places are rounded, and whether every pattern that was given came to something.

    Attributes:
        ran: whether anything was done since the patterns were given.
        rounded: places where a result is rounded.
        islands: places with results in a dtype that this mode does not round.

    Args:
        model: whose modules the patterns name.
        where: patterns; None for all places.
        only: exactly these places instead.

    Raises:
        UserError: a pattern names no module, or there is none.
    """

    def __init__(
        self, model: nn.Module, where: Any = None, only: frozenset[Place] | None = None
    ) -> None:
        self.patterns = patterns(where, model)
        if self.patterns == ():
            raise UserError("where=[] selects no place; type where=None to round all of them")
        self.only = only
        self.ran = False
        self.rounded: set[Place] = set()
        self.islands: set[Place] = set()
        self._known: dict[Place, bool] = {}

    def __contains__(self, place: Place) -> bool:
        if self.only is not None:
            return place in self.only
        if place not in self._known:
            self._known[place] = self.patterns is None or matches(place, self.patterns)
        return self._known[place]

    def check(self) -> None:
        """A pattern that rounds nothing is a mistake, if anything ran at all.

        Raises:
            UserError: its operation never happened, or happens where nothing is rounded.
        """
        for pattern in self.patterns or () if self.ran else ():
            found = {place for place in self._known if matches(place, (pattern,))}
            if not found:
                raise UserError(unmatched(pattern, (place.component for place in self._known)))
            if not found & self.rounded:
                raise UserError(self._unrounded(pattern, found))

    def _unrounded(self, pattern: str, found: set[Place]) -> str:
        held = min((place.component for place in found & self.islands), default=None)
        if held is not None:
            return (
                f"where={pattern!r} rounds nothing as run: {held} is in a dtype that the model's"
                " code widens to, and stays there; type mode='flat' to round it, too"
            )
        moved = min(place.component for place in found)
        return (
            f"where={pattern!r} rounds nothing: {moved} only moves or chooses values; type the"
            " place where they are computed"
        )


def patterns(where: Any, model: nn.Module) -> tuple[str, ...] | None:
    """The patterns that select places, their modules looked up in the model.

    Source: Own.

    Args:
        where: one pattern or several; None for none.

    Raises:
        UserError: no module has a name like that, or this is no pattern.
    """
    if where is None:
        return None
    listed = where if isinstance(where, Iterable) and not isinstance(where, bytes) else [where]
    given = (where,) if isinstance(where, str) else tuple(listed)
    if not all(isinstance(pattern, str) for pattern in given):
        raise UserError(
            f"where={shown(where)} is no pattern; expected a text or a list of texts: type"
            " where='*.mlp', or where='*.self_attn:softmax'"
        )
    names = [name for name, _ in model.named_modules() if name]
    spelled = {part for name in names for part in _around(name)}
    for pattern in given:
        module = pattern.partition(":")[0]
        if not any(fnmatchcase(name, module) for name in spelled):
            raise UserError(unmatched(pattern, names))
    return given


def unmatched(pattern: str, names: Iterable[str]) -> str:
    """What to say of a pattern that selects nothing.

    Source: Own.
    """
    known = sorted(set(names))
    # With stars and layer numbers aside, what was meant differs in a letter or two.
    plain = {NUMBER.sub("", name).replace("*", ""): name for name in reversed(known)}
    meant = NUMBER.sub("", pattern).replace("*", "")
    near = [plain[name] for name in difflib.get_close_matches(meant, plain, n=4, cutoff=0.3)]
    listed = ", ".join(near or known[:4])
    return f"where={pattern!r} matches nothing in this model; near it are {listed}"
