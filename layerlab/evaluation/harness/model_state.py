"""State of a model in memory beside its weights and configuration, as far as it can be told.

Whoever holds a model can put another activation into it, scale an adapter, or hang a hook into it:
what was kept of it before is then not its own.
"""

import hashlib
import inspect
import struct
import uuid
from collections.abc import Iterable, Iterator
from enum import Enum
from functools import partial
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from layerlab.loading.weights.hash import hash_tensors
from layerlab.system.offload import parameter
from layerlab.system.untrusted.python_file import SHARED, hash_imports, read_imported

# Their versions are said elsewhere; the code of others is known by its file.
KNOWN = SHARED | {"layerlab"}
# Where a model came from, what changes while it computes or is judged, and how it would write; what
# of that is used is told elsewhere.
NEUTRAL = frozenset(
    (
        *("name_or_path", "_name_or_path", "_commit_hash", "training", "warnings_issued"),
        *("_is_hf_initialized", "_hf_hook", "_old_forward", "generation_config"),
    )
)
POINTER = struct.calcsize("P")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
# Of every module: weights, buffers and parts are told by themselves.
_OF_MODULES = vars(nn.Module()).keys() - set(_HOOKS)
_PLAIN = (str, bytes, int, float, complex, range, type(None), type(...))
_NAMED = (torch.dtype, torch.device, torch.layout, torch.memory_format)


def describe_state(model: nn.Module) -> list[str]:
    """Return what tells models apart that have the same weights and configuration.

    What cannot be told, as the work of a hook, is described by a word that is never the same again.
    """
    stored = model.state_dict(keep_vars=True).keys()
    beside = [(name, one) for name, one in model.named_buffers() if name not in stored]
    found = [f"buffers {hash_tensors(beside)}"]
    values = _Values(model)
    for name, module in model.named_modules():
        found += [f"{name} {state}" for state in values.describe_module(module)]
    name = getattr(getattr(model, "config", None), "_attn_implementation", None)
    found.append(f"attention {values.describe(ALL_ATTENTION_FUNCTIONS.get(name))}")
    kinds = {type(module) for module in model.modules()} | values.kinds
    return found + sorted(_identify(kind) for kind in kinds if not _is_known(kind.__module__))


def hash_offloaded(model: nn.Module) -> str:
    """Return a hash of weights that are not in memory as a whole, read one by one."""
    digest = hashlib.sha256()
    for name in model.state_dict():
        place, _, own = name.rpartition(".")
        weight = parameter(model.get_submodule(place), own)
        if weight is not None:
            digest.update(str(hash_tensors([(name, weight)])).encode())
    return f"sha256:offloaded:{digest.hexdigest()}"


class _Values:
    """Values in the modules of a model beside weights, buffers and parts, each told once.

    Attributes:
        kinds: classes of what they hold.
    """

    def __init__(self, model: nn.Module) -> None:
        self.kinds = set[type]()
        self._held: list[Any] = []
        self._seen = {id(one): f"part {name}" for name, one in model.named_modules()}
        tensors = (*model.named_parameters(), *model.named_buffers())
        self._seen |= {id(one): f"tensor {name}" for name, one in tensors}

    def describe_module(self, module: nn.Module) -> Iterator[str]:
        """Yield the class of a module, and each value in it."""
        kind, own = type(module), vars(module)
        yield f"{kind.__module__}.{kind.__qualname__}"
        if any(own[name] for name in _HOOKS):
            yield _unknown()
        for name in sorted(own.keys() - _OF_MODULES - NEUTRAL - set(_HOOKS)):
            if name == "forward":  # what moves weights to a device hangs itself in here
                yield "moved" if _moves(own.get("_hf_hook")) else _unknown()
            else:
                yield f"{name} {self.describe(own[name])}"

    def describe(self, value: Any) -> str:
        """Return what tells a value apart; a word that is never the same where nothing does."""
        if isinstance(value, Enum):
            return f"{type(value).__qualname__} {value!r}"
        if isinstance(value, _PLAIN):
            return repr(value)
        if isinstance(value, _NAMED):
            return str(value)
        if isinstance(value, type):
            return self._name_kind(value)
        if id(value) in self._seen:
            return self._seen[id(value)]
        self._seen[id(value)] = f"told {len(self._seen)}"
        self._held.append(value)  # another could get its number
        return self._describe_parts(value)

    def _describe_parts(self, value: Any) -> str:
        """Describe a value by what it consists of."""
        kind = type(value)
        if isinstance(value, torch.Tensor | np.ndarray):
            return _describe_numbers(value)
        if isinstance(value, FunctionType | BuiltinFunctionType):
            return self._name_function(value)
        if isinstance(value, partial):
            return f"partial {self._list((value.func, value.args, value.keywords))}"
        if isinstance(value, MethodType):
            return f"{value.__func__.__qualname__} of {self.describe(value.__self__)}"
        if isinstance(value, nn.Module):  # that is no part of the model
            weights = hash_tensors(value.state_dict(keep_vars=True).items())
            parts = [one for each in value.modules() for one in self.describe_module(each)]
            self.kinds |= {type(each) for each in value.modules()}
            return f"{weights} {parts}"
        attributes = getattr(value, "__dict__", None)
        own = "" if attributes is None else self._describe_held(attributes)
        if isinstance(value, dict):
            return f"{self._name_kind(kind)} {self._list(value.items())} {own}"
        if isinstance(value, list | tuple):
            return f"{self._name_kind(kind)} {self._list(value)} {own}"
        if isinstance(value, set | frozenset):
            return f"{self._name_kind(kind)} {sorted(map(self.describe, value))} {own}"
        if attributes is None or _holds_more(kind):
            return _unknown()
        return f"{self._name_kind(kind)} {own}"

    def _describe_held(self, attributes: dict[str, Any]) -> str:
        names = [name for name in attributes if name not in NEUTRAL]
        return self._list((name, attributes[name]) for name in sorted(names, key=str))

    def _list(self, values: Iterable[Any]) -> str:
        return str([self.describe(one) for one in values])

    def _name_function(self, value: FunctionType | BuiltinFunctionType) -> str:
        owner = getattr(value, "__self__", None)  # of torch's functions in another language
        home = value.__module__ or (owner.__module__ if isinstance(owner, type) else None)
        if not _is_known(home):
            return _unknown()
        cells = getattr(value, "__closure__", None) or ()
        held = self._list(one.cell_contents for one in cells)
        return f"{home}.{value.__qualname__} {held}"

    def _name_kind(self, kind: type) -> str:
        if kind.__module__ != "builtins":
            self.kinds.add(kind)
        return f"{kind.__module__}.{kind.__qualname__}"


def _holds_more(kind: type) -> bool:
    """Return whether an object holds more than attributes: slots, or what another language sees."""
    places = (kind.__dictoffset__, kind.__weakrefoffset__)  # of pointers, if they lie within it
    bare = object.__basicsize__ + sum(POINTER for place in places if place > 0)
    return kind.__basicsize__ > bare


def _describe_numbers(value: torch.Tensor | np.ndarray) -> str:
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            return _unknown()
        return f"array {value.dtype} {value.shape} {value.tobytes().hex()}"
    if value.is_meta or value.layout is not torch.strided:
        return _unknown()
    return f"tensor {value.dtype} {[*value.shape]} {hash_tensors([('', value)])}"


def _moves(hook: Any) -> bool:
    """Return whether a hook is one of accelerate's own, which change no number."""
    held = getattr(hook, "hooks", (hook,))
    return hook is not None and all(_is_known(type(one).__module__) for one in held)


def _is_known(module: str | None) -> bool:
    return str(module).partition(".")[0] in KNOWN


def _identify(kind: type) -> str:
    """Return the hash of the file that a class is written in, and of what that imports."""
    try:
        file = Path(inspect.getfile(kind))
        source = read_imported(kind.__module__, file)
        return f"{hashlib.sha256(source).hexdigest()} {hash_imports(source, kind.__module__)}"
    except (OSError, TypeError):  # it was typed, and lies in no file
        return _unknown()


def _unknown() -> str:
    return uuid.uuid4().hex
