"""Registry of every part and variant that the package, an installed plug-in or a file has.

Files declare `PARTS` and `VARIANTS` at their foot; nothing registers itself. Files from outside are
added with `add`, after `layerlab.plugins` read them; plug-ins are installed packages with an entry
point in the group `layerlab.variants`.
"""

import importlib
import logging
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from layerlab.blocks.part import SLOTS, Part, Slot
from layerlab.blocks.spec import Choice, Spec, Variant
from layerlab.console.tables import printable
from layerlab.errors import UserError
from layerlab.known_names import PLUGINS, unknown_variant
from layerlab.system.untrusted.python_file import hash_imports
from layerlab.validation import suggest
from layerlab.variants.flat_imports import sibling
from layerlab.variants.source_file import SHOWN, Origin, way_to_load

PACKAGES = ("layerlab.blocks", "layerlab.variants")
OPERATIONS = "layerlab.blocks.operations."  # of these no part is made by itself


@dataclass(frozen=True)
class DeclaredNames:
    """The declarations of one file.

    Attributes:
        home: the file, as an error names it.
        module: its dotted name.
        origin: the file as it was read, where it lies outside the package.
    """

    home: str
    module: str
    parts: tuple[type[Part], ...]
    variants: tuple[Variant, ...]
    origin: Origin | None = None


_ADDED: dict[str, DeclaredNames] = {}
_SEEN: dict[
    str, DeclaredNames
] = {}  # by SHA-256: a model outlives the file as it was when it was built


def add(module: ModuleType, origin: Origin) -> DeclaredNames:
    """Take in a module from outside the package; a file that is read again replaces itself.

    Raises:
        UserError: it claims a name that another file has, declares something else than parts and
            variants, or imports in a way that a checkpoint could not carry.
    """
    home = str(origin.path)
    found = _outside(module, home, origin)
    others = [one for one in _all() if one.home != home and _digest(one) != origin.digest]
    _check([*others, found])
    alike = next((one.home for one in others if one.module == found.module), None)
    if alike:
        raise UserError(
            f"two files would be one module, {found.module}, and a checkpoint has room for one: "
            f"{alike} and {home}; rename one of them"
        )
    for again in [one.home for one in _ADDED.values() if _digest(one) == origin.digest]:
        del _ADDED[again]
    _ADDED[home] = _SEEN[origin.digest] = found
    return found


def origins() -> list[Origin]:
    """Return the files from outside the package that are loaded, those of plug-ins too."""
    return [found.origin for found in _all() if found.origin]


def require(files: Mapping[str, str], folder: str) -> None:
    """Make sure that the files of a model are loaded, byte for byte.

    Args:
        files: SHA-256 by name, as the configuration has it.
        folder: where the model came from.

    Raises:
        UserError: one is not loaded, or another one of its name is.
    """
    loaded = {one.digest: one for one in origins()}
    names = {one.name: one for one in loaded.values()}
    for name, digest in files.items():
        if digest in loaded:
            continue
        way = way_to_load(Path(folder) / Path(name).name)
        if name in names:
            other = names[name]
            raise UserError(
                f"{name!r} as loaded from {other.path} has SHA-256 {other.digest[:SHOWN]}..., but "
                f"this model was saved with {digest[:SHOWN]}...; {way} instead"
            )
        raise UserError(
            f"this model needs the file {name!r} with SHA-256 {digest[:SHOWN]}..., which is not "
            f"loaded; read it, and if you trust it, {way}"
        )


def read_before(digest: str) -> bool:
    """Return whether this process has read a file of this SHA-256, loaded still or not."""
    return digest in _SEEN or digest in {one.digest for one in origins()}


def find_needed(spec: Spec) -> dict[str, str]:
    """Return the files from outside the package that a spec needs: SHA-256 by name.

    Raises:
        UserError: it names a part that is not there.
    """
    found = (one.origin for one in declaring(spec))
    return {one.name: one.digest for one in found if one}


def code_beside(spec: Spec) -> dict[str, str]:
    """Return the code of a spec that no recipe names: SHA-256 by name.

    That of plug-ins, and the modules that files from outside the package import in their turn.

    Raises:
        UserError: it names a part that is not there.
    """
    code: dict[str, str] = {}
    for one in declaring(spec):
        if one.origin is not None:
            code |= one.origin.helpers
            code |= {} if one.home in _ADDED else {one.origin.name: one.origin.digest}
    return code


def declaring(spec: Spec, files: Mapping[str, str] | None = None) -> list[DeclaredNames]:
    """Return the files that declare the parts of a spec, each once.

    Args:
        files: SHA-256 by name: files as they were when the model was built, where they have been
            read anew since.

    Raises:
        UserError: it names a part that is not there.
    """
    then = [_SEEN[digest] for digest in (files or {}).values() if digest in _SEEN]
    everything = [*then, *_all()]
    homes: dict[str, DeclaredNames] = {}
    for slot, name in _list_named(spec):
        holders = (one for one in everything if (slot, name) in _names(one))
        found = next(holders, None)
        if found is None:
            part(slot, name)  # says what is missing
        else:
            homes.setdefault(found.module, found)
    return list(homes.values())


def part(slot: Slot, name: str) -> type[Part]:
    """Return the part class of a slot by its name.

    Raises:
        UserError: there is none.
    """
    known = parts(slot)
    if name not in known:
        raise UserError(
            f"no {slot} part is called {name!r}; {_near(name, known)}known: {', '.join(known)}; "
            "one from a file of your own: type --load FILE.py"
        )
    return known[name]


def parts(slot: Slot) -> dict[str, type[Part]]:
    """Return every part class of a slot by its name, in the order of the files."""
    return {one.name: one for found in _all() for one in found.parts if one.slot == slot}


def variants() -> dict[str, Variant]:
    """Return every variant by its name, in the order of the files."""
    return {one.name: one for found in _all() for one in found.variants}


def variant(name: Any) -> Variant:
    """Return the variant of this name.

    Raises:
        UserError: there is none.
    """
    known = variants()
    if not isinstance(name, str) or name not in known:
        raise unknown_variant(name, known)
    return known[name]


def home(name: str) -> str:
    """Return the file that declares a variant."""
    return next(found.home for found in _all() for one in found.variants if one.name == name)


def _all() -> Iterator[DeclaredNames]:
    yield from _find_packaged()
    yield from _load_plugged()
    yield from _ADDED.values()


@cache
def _find_packaged() -> tuple[DeclaredNames, ...]:
    found = []
    for package in map(importlib.import_module, PACKAGES):
        entries = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        # In the order of the files, whatever folders they lie in.
        for name in sorted((one.name for one in entries), key=lambda name: name.split(".")[-1]):
            if name != __name__ and not name.startswith(OPERATIONS):
                found.append(_declare(importlib.import_module(name), name))
    _check(found)
    return tuple(found)


@cache
def _load_plugged() -> tuple[DeclaredNames, ...]:
    """Return what installed plug-ins declare; an unusable one is left out with a warning."""
    found: list[DeclaredNames] = []
    for entry in entry_points(group=PLUGINS):
        try:
            plugin = _plugin(entry)
            _check([*_find_packaged(), *found, plugin])
        except Exception as error:  # whatever another's code does, ours goes on
            message = printable(" ".join(str(error).split()))
            logging.getLogger("layerlab").warning(
                "the plug-in %r is left out: %s: %s", entry.name, type(error).__name__, message
            )
        else:
            found.append(plugin)
            if plugin.origin:
                _SEEN[plugin.origin.digest] = plugin
    return tuple(found)


def _plugin(entry: EntryPoint) -> DeclaredNames:
    module = importlib.import_module(entry.module)
    path = Path(str(module.__file__))
    source = path.read_bytes()
    helpers = hash_imports(source, module.__name__)
    origin = Origin(module.__name__, path, f"{module.__name__}.py", source, helpers)
    return _outside(module, f"{entry.name} ({path})", origin)


def _outside(module: ModuleType, home: str, origin: Origin) -> DeclaredNames:
    """Return what a file from outside declares, after checking it."""
    for name, kind in (("PARTS", type), ("VARIANTS", Variant)):
        declared = getattr(module, name, ())
        right = isinstance(declared, tuple) and all(isinstance(one, kind) for one in declared)
        if not right or (name == "PARTS" and not all(issubclass(one, Part) for one in declared)):
            example = "(MyPart,)" if name == "PARTS" else '(Variant(name="my-idea", ...),)'
            raise UserError(
                f"{name} of {home} is not a tuple of {name.lower()}; type {name} = {example}"
            )
    sibling(origin.text, module.__name__, home=home)
    return _declare(module, home, origin)


def _declare(module: ModuleType, home: str, origin: Origin | None = None) -> DeclaredNames:
    parts, variants = (tuple(getattr(module, name, ())) for name in ("PARTS", "VARIANTS"))
    return DeclaredNames(home, module.__name__, parts, variants, origin)


def _check(everything: Iterable[DeclaredNames]) -> None:
    owners: dict[tuple[str, str], str] = {}
    for found in everything:
        names = [("variant", one.name) for one in found.variants]
        names += [(f"{slot} part", name) for slot, name in _names(found)]
        for kind, name in names:
            if owners.get((kind, name)) == found.home:
                raise UserError(
                    f"{found.home} declares the {kind} {name!r} twice; give one of them another "
                    "name, or leave it out"
                )
            if (kind, name) in owners:
                raise UserError(
                    f"two files claim the {kind} {name!r}: {owners[kind, name]} and {found.home}; "
                    "give one of them another name"
                )
            owners[kind, name] = found.home


def _names(found: DeclaredNames) -> list[tuple[Slot, str]]:
    return [(one.slot, one.name) for one in found.parts]


def _list_named(spec: Spec) -> Iterator[tuple[Slot, str]]:
    """Yield the slot and name of every part that a spec names."""
    for record in (spec.block, spec.stack):
        for field in fields(record):
            choice = getattr(record, field.name)
            if isinstance(choice, Choice):
                slots = [slot for slot in SLOTS if slot == field.name]
                yield (slots[0] if slots else "norm"), choice.name


def _digest(found: DeclaredNames) -> str | None:
    return found.origin.digest if found.origin else None


def _near(name: str, known: Iterable[str]) -> str:
    # To a reader "none" is close to nothing: it asks for an empty slot, which not all may be.
    return "" if name == "none" else suggest(name, known)
