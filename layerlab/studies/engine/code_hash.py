"""A hash of the code that a study's numbers come from: its file, all that it imports, its data.

The versions of Python and of the libraries that it computes with are in it too.
"""

import ast
import hashlib
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from layerlab.system.hardware import versions

PACKAGE = "layerlab"
ROOT = Path(__file__).resolve().parents[2]
# Pages and terminals show numbers and make none; the rest of these only leads to everything.
SHOWN = ("report", "console", "plugins", "api", "cli")
MODELS = "builtin"
DATA = frozenset({".cpp", ".json", ".safetensors", ".toml", ".txt"})
# What is found by name, and not imported by whoever uses it: parts and variants, kernels of GPUs.
FOUND = {
    f"{PACKAGE}.variants.registry": "variants",
    f"{PACKAGE}.numerics.formats.choose_kernel": "numerics/formats",
}


def fingerprint(*modules: str) -> str:
    """Return a hash of files of the package, of every file that they import, and of versions.

    A change of another study, or of a page, leaves what is kept of this one as good as it was.
    """
    seen: set[Path] = set()
    waiting = [file for module in modules for file in _files(module)]
    while waiting:
        file = waiting.pop()
        if file not in seen:
            seen.add(file)
            waiting += _import(file)
    found = hashlib.blake2b(json.dumps(versions()).encode(), digest_size=16)
    for file in sorted({*seen, *_data_beside(seen)}):
        found.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return found.hexdigest()


def _data_beside(seen: set[Path]) -> Iterator[Path]:
    """Yield what the code reads that is no Python: the kernel's C++, tables, the shipped models."""
    for folder in {file.parent for file in seen}:
        inside = folder.rglob("*") if folder.name == MODELS else folder.iterdir()
        yield from (one for one in inside if one.suffix in DATA)


@cache
def _import(file: Path) -> tuple[Path, ...]:
    tree = ast.parse(file.read_bytes())
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return tuple(path for name in names for path in _files(name))


def _files(name: str) -> Iterator[Path]:
    """Yield the file of a module of the package, unless the module only displays."""
    parts = name.split(".")
    if parts[0] != PACKAGE or len(parts) < 2 or parts[1] in SHOWN:
        return
    path = ROOT.joinpath(*parts[1:])
    if path.with_suffix(".py").is_file():
        yield path.with_suffix(".py")
    if (path / "__init__.py").is_file():
        yield path / "__init__.py"
    if name in FOUND:
        yield from sorted((ROOT / FOUND[name]).rglob("*.py"))
