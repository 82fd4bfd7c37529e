"""What files declare: found by looking into them, so that there is no list to keep.

A file of `layerlab/measures` that ends in `MEASURES = (Measure(...),)` is part of the laboratory;
`load` brings such a file from anywhere else. Values are read, nothing is registered at import:
two files that claim one name are one clear error.
"""

import ast
import difflib
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from layerlab import UserError
from layerlab.measures.measure import Measure

# The order of a report: from what the stream carries to the attention that moves it, then the cost.
ORDER = (
    "diversity",
    "dimension",
    "stream",
    "spectrum",
    "attention",
    "querykey",
    "lipschitz",
    "gain",
)
EXAMPLE = "--measures 'diversity,dimension(epsilon=0.9)'"


def measures() -> dict[str, Measure]:
    """Every measure of the package by its name, in the order of a report."""
    package = importlib.import_module("layerlab.measures")
    modules = [
        importlib.import_module(f"{package.__name__}.{found.name}")
        for found in pkgutil.iter_modules(package.__path__)
    ]
    declared = [measure for module in modules for measure in getattr(module, "MEASURES", ())]
    return _by_name(sorted(declared, key=_place))


def load(path: str | PathLike[str]) -> tuple[Measure, ...]:
    """Run a file from outside the package and give the measures at its foot.

    An error inside the file keeps its traceback: its author needs it.

    Raises:
        UserError: there is no such Python file, or it declares no measures.
    """
    file = Path(path)
    if not file.is_file() or file.suffix != ".py":
        raise UserError(
            f"no Python file at {file}; expected a file that ends in MEASURES = (Measure(...),): "
            "type --load my_measure.py"
        )
    name = f"layerlab_loaded_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their own module up
    spec.loader.exec_module(module)
    found = getattr(module, "MEASURES", None)
    if not isinstance(found, tuple) or not all(isinstance(item, Measure) for item in found):
        raise UserError(
            f"{file} declares no measures; expected a tuple at its foot: "
            "type MEASURES = (Measure(...),)"
        )
    return found


def resolve(names: Any = None, loaded: Sequence[Measure] = ()) -> list[Measure]:
    """Turn what a user asked for into measures with their options set.

    Args:
        names: names, with options as in `dimension(epsilon=0.9)`, also several in one string with
            commas, or such a string alone; measures pass as they are; None is every default
            measure and all of `loaded`.
        loaded: measures from outside files, which may be asked for by name.

    Raises:
        UserError: an unknown name or option, a value that it does not take, one name asked for
            twice, or something that is neither a name nor a measure.

    Example:
        >>> [measure.options for measure in resolve(["dimension(epsilon=0.9)"])]
        [{'epsilon': 0.9}]
    """
    known = _by_name([*measures().values(), *loaded])
    if names is None:
        extra = {measure.name for measure in loaded}
        return [one for one in known.values() if one.default or one.name in extra]
    if isinstance(names, str | Measure):
        names = [names]
    elif not isinstance(names, Iterable):
        raise _unreadable(names)
    chosen = [one for name in names for one in _read(name, known)]
    if not chosen:
        raise UserError(f"no measure is named; type for example {EXAMPLE}")
    return list(_by_name(chosen).values())


def _place(measure: Measure) -> tuple[int, str]:
    known = measure.name in ORDER
    return (ORDER.index(measure.name) if known else len(ORDER), measure.name)


def _by_name(declared: Iterable[Measure]) -> dict[str, Measure]:
    found: dict[str, Measure] = {}
    for measure in declared:
        if measure.name in found:
            raise UserError(
                f"two measures are called {measure.name!r}: {_home(found[measure.name])} and "
                f"{_home(measure)}; give one of them another name, or name it once"
            )
        found[measure.name] = measure
    return found


def _home(measure: Measure) -> str:
    return f"that of {measure.read.__module__}"


def _read(entry: Any, known: dict[str, Measure]) -> list[Measure]:
    if isinstance(entry, Measure):
        return [entry]
    if not isinstance(entry, str):
        raise _unreadable(entry)
    text = entry.strip().strip(",")
    try:
        parsed = ast.parse(f"({text},)" if text else "()", mode="eval").body
        assert isinstance(parsed, ast.Tuple)
        return [_one(node, known) for node in parsed.elts]
    except (SyntaxError, ValueError, TypeError) as error:
        raise _unreadable(entry) from error


def _unreadable(entry: Any) -> UserError:
    return UserError(
        f"cannot read the measures {entry!r}; expected names with commas, options in brackets: "
        f"type {EXAMPLE}"
    )


def _one(node: ast.expr, known: dict[str, Measure]) -> Measure:
    """One name, or one name called with keywords; ValueError for anything else."""
    call = node if isinstance(node, ast.Call) else None
    label = call.func if call else node
    if not isinstance(label, ast.Name) or (call and call.args):
        raise ValueError(ast.dump(node))
    if label.id not in known:
        near = difflib.get_close_matches(label.id, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UserError(f"no measure is called {label.id!r}; {hint}known: {', '.join(known)}")
    measure = known[label.id]
    words = call.keywords if call else []
    return measure.given(**{str(word.arg): _value(word.value) for word in words})


def _value(node: ast.expr) -> Any:
    """What Python would read, and a bare name as text: shells are apt to take quotes away."""
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)
