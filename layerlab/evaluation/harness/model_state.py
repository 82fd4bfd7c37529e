"""What a model in memory computes beside its weights and configuration, as far as it can be told.

Whoever holds a model can put another activation into it, scale an adapter, or hang a hook into it:
what was kept of it before is then not its own.
"""

import hashlib
import inspect
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Any

from torch import nn

from layerlab.loading.weights_hash import hash_tensors
from layerlab.system.python_file import SHARED, hash_imports, read_imported

# Their versions are said elsewhere; the code of others is known by its file.
KNOWN = SHARED | {"layerlab"}
# Where a model came from, and what changes while it computes or is judged.
NEUTRAL = frozenset({"name_or_path", "training", "warnings_issued", "_is_hf_initialized"})
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


def describe_state(model: nn.Module) -> list[str]:
    """Return what tells models apart that have the same weights and configuration.

    What cannot be told, as the work of a hook, is described by a word that is never the same again.
    """
    stored = model.state_dict(keep_vars=True).keys()
    beside = [(name, one) for name, one in model.named_buffers() if name not in stored]
    found = [f"buffers {hash_tensors(beside)}"]
    for name, module in model.named_modules():
        found += [f"{name} {state}" for state in _describe(module)]
    kinds = {type(module) for module in model.modules()}
    return found + sorted(_identify(kind) for kind in kinds if not _is_known(kind.__module__))


def _describe(module: nn.Module) -> Iterator[str]:
    kind, own = type(module), vars(module)
    yield f"{kind.__module__}.{kind.__qualname__}"
    if any(own[name] for name in _HOOKS):
        yield _unknown()
    for name, value in sorted(own.items()):
        if name == "forward":  # what moves weights to a device hangs itself in here
            yield "moved" if hasattr(module, "_hf_hook") else _unknown()
        elif isinstance(value, FunctionType | BuiltinFunctionType):
            named = f"{value.__module__}.{value.__qualname__}"
            yield f"{name} {named}" if _is_known(value.__module__) else _unknown()
        elif name not in NEUTRAL and _is_plain(value):
            yield f"{name} {value!r}"


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return bool(value) and all(map(_is_plain, (*value, *value.values())))
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | int | float)


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
