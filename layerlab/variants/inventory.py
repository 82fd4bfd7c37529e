"""What can be built: every part and variant that the package, an installed plug-in or a file has.

Files declare `PARTS` and `VARIANTS` at their foot; nothing registers itself. Files from outside are
added with `add`, after `layerlab.registry` read them.
"""

import difflib
import importlib
import pkgutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType

from layerlab import UserError
from layerlab.blocks.part import Part, Slot
from layerlab.blocks.spec import Variant

PACKAGES = ("layerlab.blocks", "layerlab.variants")


@dataclass(frozen=True)
class Found:
    """What one file declares.

    Attributes:
        home: the file, as an error names it.
    """

    home: str
    parts: tuple[type[Part], ...]
    variants: tuple[Variant, ...]


_ADDED: dict[str, Found] = {}


def add(module: ModuleType, home: str) -> Found:
    """Take in a module from outside the package; the same file read again replaces itself.

    Source: Own.

    Raises:
        UserError: it claims a name that another file has.
    """
    found = _declared(module, home)
    others = [one for one in _all() if one.home != home]
    _check([*others, found])
    _ADDED[home] = found
    return found


def part(slot: Slot, name: str) -> type[Part]:
    """The part class of a slot by its name.

    Source: Own.

    Raises:
        UserError: there is none.
    """
    known = {one.name: one for found in _all() for one in found.parts if one.slot == slot}
    if name not in known:
        raise UserError(
            f"no {slot} part is called {name!r}; {_near(name, known)}known: {', '.join(known)}; "
            "one from a file of your own: type --load FILE.py"
        )
    return known[name]


def variants() -> dict[str, Variant]:
    """Every variant by its name, in the order of the files.

    Source: Own.
    """
    return {one.name: one for found in _all() for one in found.variants}


def variant(name: str) -> Variant:
    """The variant of this name.

    Source: Own.

    Raises:
        UserError: there is none.
    """
    known = variants()
    if name not in known:
        raise UserError(
            f"no variant is called {name!r}; {_near(name, known)}type: layerlab variants"
        )
    return known[name]


def home(name: str) -> str:
    """The file that declares a variant.

    Source: Own.
    """
    return next(found.home for found in _all() for one in found.variants if one.name == name)


def _all() -> Iterator[Found]:
    yield from _packaged()
    yield from _ADDED.values()


@cache
def _packaged() -> tuple[Found, ...]:
    found = []
    for package in map(importlib.import_module, PACKAGES):
        for entry in pkgutil.iter_modules(package.__path__):
            name = f"{package.__name__}.{entry.name}"
            if name != __name__:
                found.append(_declared(importlib.import_module(name), name))
    _check(found)
    return tuple(found)


def _declared(module: ModuleType, home: str) -> Found:
    return Found(home, tuple(getattr(module, "PARTS", ())), tuple(getattr(module, "VARIANTS", ())))


def _check(everything: Iterable[Found]) -> None:
    owners: dict[tuple[str, str], str] = {}
    for found in everything:
        names = [("variant", one.name) for one in found.variants]
        names += [(f"{one.slot} part", one.name) for one in found.parts]
        for kind, name in names:
            if (kind, name) in owners:
                raise UserError(
                    f"two files claim the {kind} {name!r}: {owners[kind, name]} and {found.home}; "
                    "give one of them another name"
                )
            owners[kind, name] = found.home


def _near(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}? " if near else ""
