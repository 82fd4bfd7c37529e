"""Declarations of files, found by looking into them: there is no list to keep.

A file of `layerlab/measures/quantities` that ends in `MEASURES = (Measure(...),)` is part of the
laboratory, and so is one of `layerlab/variants` that ends in `PARTS` and `VARIANTS`; `load` brings
measures, parts and variants from anywhere else. Values are read, nothing is registered at import:
two files that claim one name are one clear error.
"""

import importlib
import importlib.util
import pkgutil
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any

from layerlab import builtin
from layerlab.errors import UserError
from layerlab.known_names import MEASURES
from layerlab.measures.measure import WEIGHTS, Measure
from layerlab.measures.naming import (
    EXAMPLE,
    Named,
    check_once,
    parse_names,
    reads_text,
    unreadable,
)
from layerlab.measures.questions import SALIENCY, check_backward, saliency_options
from layerlab.numerics.formats.format_list import parse_formats
from layerlab.records.parse import read_json
from layerlab.system.files import File
from layerlab.system.signals import Stopped
from layerlab.system.untrusted.python_file import (
    check_syntax,
    hash_imports,
    import_anew,
    read_python_file,
)
from layerlab.system.untrusted.trust import allow_file, check_allowed
from layerlab.validation import short_repr
from layerlab.variants.renamed import update_imports
from layerlab.variants.source_file import check_unchanged

# What is measured when formats are asked for; gradients only when they are, too.
ROUNDING = ("rounding", "logits", "attribution", "condition")
GRADIENTS = "gradients"
FEATURES = "features"
SWAP, CHANGE = "swap", "change"
BUILDING = ("PARTS", "VARIANTS")


def list_measures() -> dict[str, Measure]:
    """List every measure of the package by its name, in the order of a report."""
    package = importlib.import_module("layerlab.measures.quantities")
    modules = [
        importlib.import_module(found.name)
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ]
    declared = [measure for module in modules for measure in getattr(module, "MEASURES", ())]
    return _by_name(sorted(declared, key=_place))


def load(path: File, models: Iterable[str] = ()) -> tuple[Measure, ...]:
    """Run a file from outside the package and return the measures at its foot.

    The parts and variants at its foot are from then on known by their names, as the package's own.

    Args:
        models: that may need it, by folder or Hub id; none is run that was changed since one of
            them was saved with it.

    Raises:
        UserError: there is no such Python file, it is not Python, it fails while it runs, declares
            nothing, claims a name that another file has, or a model was saved with another one.
    """
    file, source = read_python_file(path)
    for model in models:
        for folder, saved in _read_saved(model):
            check_unchanged(file, source, saved, folder)
    allow_file(source)
    return _take_in(file, source)


def load_files(files: File | Iterable[File], models: Iterable[str] = ()) -> tuple[Measure, ...]:
    """Run files as `load` does, and return the measures of all of them.

    Raises:
        UserError: as `load`.
    """
    named = list(models)
    return tuple(measure for path in paths(files) for measure in load(path, named))


def paths(files: File | Iterable[File]) -> list[File]:
    """Return files as a list, also where one is given alone."""
    return [files] if isinstance(files, str | PathLike) else list(files)


def _read_saved(model: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Read the files that a model was saved with, by its place: SHA-256 by name.

    A folder of checkpoints is several models; what cannot be read is said when the model is loaded.
    """
    folder = Path(model)
    if not folder.is_dir() and model not in builtin.NAMES:
        from layerlab.loading.folders import find_folder  # late: most files come without a model

        folder = find_folder(model, with_weights=False)
    for config in (folder / "config.json", *sorted(folder.glob("checkpoint-*/config.json"))):
        with suppress(OSError, ValueError, AttributeError):
            saved = read_json(config).get("files")
            named = saved if isinstance(saved, dict) else {}
            yield str(config.parent), {name: str(digest) for name, digest in named.items()}


def load_named(paths: Iterable[str]) -> None:
    """Run the files that a recipe names, if the user has asked for that.

    Raises:
        UserError: nobody has asked for one of them; or as `load`.
    """
    for path in paths:
        file, source = read_python_file(path)
        check_allowed(path, source)
        _take_in(file, source)


def _take_in(file: Path, source: bytes) -> tuple[Measure, ...]:
    """Return what a file declares, once it has run."""
    name = "layerlab_loaded_" + re.sub(r"\W", "_", file.stem)
    with _restore(name):
        with import_anew(source, name):
            module = _run(file, source, name)
        measures, builds = _declare(file, module)
        if builds:
            # Late: who only measures needs nothing that builds.
            from layerlab.variants.registry import add
            from layerlab.variants.source_file import Origin

            helpers = hash_imports(source, name)
            add(module, Origin(name, file.resolve(), file.name, source, helpers))
    return measures


@contextmanager
def _restore(name: str) -> Iterator[None]:
    """Put the module of this name back as it was after an error."""
    before = sys.modules.get(name)
    try:
        yield
    except BaseException:
        sys.modules.pop(name, None)
        if before is not None:
            sys.modules[name] = before
        raise


def _run(file: Path, source: bytes, name: str) -> ModuleType:
    """Run a file as a module: the bytes that were read, under the names of today."""
    check_syntax(file, source)
    code = compile(update_imports(importlib.util.decode_source(source)), str(file), "exec")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None, "a .py file has a specification"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their own module up
    try:
        exec(code, vars(module))
    except (KeyboardInterrupt, Stopped):
        raise
    except BaseException as error:  # whatever a file raises is its own to mend
        raise UserError(_describe_failure(file, error)) from error
    return module


def _describe_failure(file: Path, error: BaseException) -> str:
    """Describe what a file did when it was run, and in which of its lines."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame.lineno for frame in frames if frame.filename == str(file)]
    where = f"{file}, line {own[-1]}" if own else str(file)
    message = " ".join(traceback.format_exception_only(error)[-1].split())[:300]
    did = "ended Python" if isinstance(error, SystemExit) else "failed"
    return f"{where} {did} while it was loaded: {message}; mend that line, then load it again"


def _declare(file: Path, module: ModuleType) -> tuple[tuple[Measure, ...], bool]:
    """Return the measures of a file, and whether it has something to build."""
    found = getattr(module, "MEASURES", None)
    builds = any(hasattr(module, name) for name in BUILDING)
    if found is None and builds:
        return (), True
    if not isinstance(found, tuple) or not all(isinstance(item, Measure) for item in found):
        raise UserError(
            f"{file} declares no measures, parts or variants; expected a tuple at its foot: "
            "type MEASURES = (Measure(...),), or PARTS = (MyPart,) and VARIANTS = (Variant(...),)"
        )
    return found, builds


def resolve(names: Any = None, loaded: Sequence[Measure] = ()) -> list[Measure]:
    """Turn what a user asked for into measures with their options set.

    Args:
        names: names, with options as in `dimension(epsilon=0.9)`, also several in one string with
            commas, or such a string alone; or a table of options by name, as a report keeps them;
            measures pass as they are; None is every default measure and all of `loaded`.
        loaded: measures from outside files, which may be asked for by name.

    Raises:
        UserError: an unknown name or option, a value that it does not take, one name asked for
            twice, or something that is neither a name nor a measure.

    Example:
        >>> [measure.options for measure in resolve(["dimension(epsilon=0.9)"])]
        [{'epsilon': 0.9}]
    """
    known = _by_name([*list_measures().values(), *loaded])
    if names is None:
        extra = {measure.name for measure in loaded}
        return [one for one in known.values() if one.default or one.name in extra]
    if isinstance(names, str | Measure):
        names = [names]
    elif not isinstance(names, Iterable):
        raise unreadable(names)
    chosen: list[Measure] = []
    typed: list[Named] = []
    for entry in names:
        given = [] if isinstance(entry, Measure) else parse_names(entry, known)
        typed += given
        chosen += [entry] if isinstance(entry, Measure) else []
        more = _options_of(entry, names) if isinstance(names, Mapping) else {}
        chosen += [known[name].given(**{**options, **more}) for name, options in given]
    check_once(typed)
    if not chosen:
        raise UserError(f"no measure is named; type for example {EXAMPLE}")
    return list(_by_name(chosen).values())


def _options_of(name: Any, table: Mapping[Any, Any]) -> Mapping[str, Any]:
    found: Any = table[name]
    if not isinstance(found, Mapping):
        raise UserError(
            f"the options of {short_repr(name)} are {short_repr(found)}; expected a table, such as "
            "{'dimension': {'epsilon': 0.9}}"
        )
    return found


def resolve_weights(names: Any = None, loaded: Sequence[Measure] = ()) -> list[Measure]:
    """Turn what a user asked for into measures that need weights alone: all of them, for None.

    Raises:
        UserError: as `resolve`, or a measure reads a text.
    """
    known = _by_name([*list_measures().values(), *loaded]).values()
    alone = [one for one in known if one.needs <= WEIGHTS]
    usual = [one for one in alone if one.name != CHANGE]  # which wants another checkpoint
    for measure in (chosen := usual if names is None else resolve(names, loaded)):
        if not measure.needs <= WEIGHTS:
            raise reads_text(measure.name, [one.name for one in alone])
    return chosen


def with_formats(chosen: Sequence[Measure], given: Any, backward: bool = False) -> list[Measure]:
    """Return the measures with those of rounding for the formats that a user asked for.

    Args:
        given: names of formats, with commas or one each; None is none.
        backward: also measure the errors of gradients.

    Raises:
        UserError: no such format, or `backward` without a format.

    Example:
        >>> [measure.options for measure in with_formats([], "bf16, fp16")][0]
        {'formats': 'bf16,fp16'}
    """
    check_backward(given, backward)
    if given is None:
        return list(chosen)
    options = {"formats": ",".join(parse_formats(given))}
    known, kept = list_measures(), {measure.name: measure for measure in chosen}
    for name in (*ROUNDING, *((GRADIENTS,) if backward else ())):
        if name in known:
            measure = kept.get(name, known[name])
            kept[name] = measure.given(**{n: options[n] for n in options if n in measure.options})
    return sorted(kept.values(), key=_place)


def with_saliency(
    chosen: Sequence[Measure], text: str | None, target: str | None, foil: str | None
) -> list[Measure]:
    """Return the measures with the saliency of a text that a user gave.

    Args:
        text: None asks for no saliency, unless the measures have one already.
        target: the word that is asked about.
        foil: the word instead of which it is due.

    Raises:
        UserError: a word without a text to ask it of.

    Example:
        >>> [measure.options["foil"] for measure in with_saliency([], "I am", None, " is")]
        [' is']
    """
    kept = {measure.name: measure for measure in chosen}
    options = saliency_options(text=text, target=target, foil=foil, asked=SALIENCY in kept)
    if not options:
        return list(chosen)
    kept[SALIENCY] = kept.get(SALIENCY, list_measures()[SALIENCY]).given(**options)
    return sorted(kept.values(), key=_place)


def with_features(chosen: Sequence[Measure], wanted: bool) -> list[Measure]:
    """Return the measures with the features of frequent tokens where a user wants to see them.

    Example:
        >>> [measure.name for measure in with_features([], True)]
        ['features']
    """
    if not wanted or any(measure.name == FEATURES for measure in chosen):
        return list(chosen)
    return sorted([*chosen, list_measures()[FEATURES]], key=_place)


def with_other(chosen: Sequence[Measure], against: str | None, weights: bool) -> list[Measure]:
    """Return the measures with that of another checkpoint's weights where a user named one.

    Args:
        weights: these alone are looked at.

    Example:
        >>> [measure.options["against"] for measure in with_other([], "llama", False)]
        ['llama']
    """
    if against is None:
        return list(chosen)
    name = CHANGE if weights else SWAP
    asked = next((one for one in chosen if one.name == name), list_measures()[name])
    rest = [one for one in chosen if one.name != name]
    return sorted([*rest, asked.given(against=against)], key=_place)


def _place(measure: Measure) -> tuple[int, str]:
    known = measure.name in MEASURES
    return (MEASURES.index(measure.name) if known else len(MEASURES), measure.name)


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
