"""A Python file of the user's own, and what it imports, read as bytes; nothing of it runs here.

What is hashed is what runs: a module that was edited after it was imported is known by its bytes of
then, and a file that is loaded imports it anew.
"""

import ast
import hashlib
import importlib.util
import site
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from types import FunctionType
from typing import Any

import psutil

from layerlab.errors import UserError
from layerlab.system.files import check_size

# What layerlab itself has imported: a second copy of it would not be the one that is in use.
SHARED = frozenset({"accelerate", "peft", "torch", "transformers"})
# A file that was written later may be another one than was imported; told to a second alone.
_STARTED = psutil.Process().create_time() - 1
# Modules as they were imported, by name: the specification, which is another one once they are
# imported anew, and the bytes.
_IMPORTED: dict[str, tuple[Any, bytes]] = {}


def read_python_file(path: str | PathLike[str]) -> tuple[Path, bytes]:
    """Return the path and the bytes of a Python file.

    Raises:
        UserError: there is no such file, it is no Python file, or it is too large to be one.
    """
    file = Path(path)
    if not file.is_file() or file.suffix != ".py":
        raise UserError(
            f"no Python file at {file}; expected a file that ends in MEASURES = (Measure(...),) or "
            "in PARTS and VARIANTS: type --load my_idea.py"
        )
    check_size(file)
    return file, file.read_bytes()


def check_syntax(file: Path, source: bytes) -> None:
    """Refuse a file that is not Python; what is wrong is told by its own lines.

    Raises:
        UserError: it cannot be compiled.
    """
    try:
        compile(source, str(file), "exec")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        line = getattr(error, "lineno", None) or 1
        message = getattr(error, "msg", None) or str(error)
        raise UserError(
            f"cannot read {file} as Python: line {line}: {message}; mend that line, then load it "
            "again"
        ) from error


def hash_imports(source: bytes, module: str = "") -> dict[str, str]:
    """Return the SHA-256 of each module that a file imports and that is not installed, by its name.

    What lies in `PYTHONPATH`, or is installed to be edited, can change from one call to the next.
    What these modules import counts too, and so do all modules of the file's own package. Nothing
    runs: what a function imports once it is called is not seen. A module counts as it was imported.

    Args:
        source: of the file.
        module: what it is imported as.
    """
    found = _find_loose(source, module)
    return {name: hashlib.sha256(found[name]).hexdigest() for name in sorted(found)}


def read_imported(name: str, file: Path) -> bytes:
    """Return the bytes of a module as it was imported, as far as this process knows them.

    Args:
        file: that it came from.
    """
    spec = getattr(sys.modules.get(name), "__spec__", None)
    if spec is None or _source_file(name) != file:
        return file.read_bytes()
    then, content = _IMPORTED.get(name, (None, b""))
    if then is not spec:
        content = file.read_bytes()
        if not _is_newer(file):
            _IMPORTED[name] = spec, content
    return content


@contextmanager
def import_anew(source: bytes, module: str) -> Iterator[None]:
    """Have a file, which runs meanwhile, import what was changed since it was imported.

    Raises:
        UserError: a package was changed that layerlab itself uses, or a module that is only reached
            through what is imported meanwhile.
    """
    _forget_changed(source, module)
    before = dict(sys.modules)
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # it is dated to a second
    try:
        yield
    finally:
        sys.dont_write_bytecode = written
    found = _find_loose(source, module)
    for name in found:
        if before.get(name) is sys.modules[name] and _is_changed(name):
            raise UserError(
                f"{name} was changed after Python had imported it; load the file again, which "
                "imports it anew"
            )
    for name, content in found.items():
        _IMPORTED[name] = sys.modules[name].__spec__, content


def _forget_changed(source: bytes, module: str) -> None:
    """Forget the modules that were changed since they were imported, and those that import them."""
    found = _find_loose(source, module)
    stale = {name for name in found if _is_changed(name)}
    if not stale:
        return
    imports = {name: {*_list_imports(found[name], name)} for name in found}
    while more := {name for name in found if name not in stale and stale & imports[name]}:
        stale |= more
    if shared := sorted({name.partition(".")[0] for name in stale} & SHARED):
        raise UserError(
            f"{shared[0]} was changed while Python was running, and layerlab uses it as it was; "
            "start Python again"
        )
    for name in stale:
        gone = sys.modules.pop(name)
        above, _, own = name.rpartition(".")
        if above in sys.modules and getattr(sys.modules[above], own, None) is gone:
            delattr(sys.modules[above], own)


def _is_changed(name: str) -> bool:
    """Return whether a module may be another one than its file is now."""
    file, module = _source_file(name), sys.modules[name]
    then, content = _IMPORTED.get(name, (None, b""))
    if file is None:
        return False
    return content != file.read_bytes() if then is module.__spec__ else _is_newer(file)


def _is_newer(file: Path) -> bool:
    status = file.stat()
    return max(status.st_mtime, status.st_ctime) > _STARTED


def _find_loose(source: bytes, module: str) -> dict[str, bytes]:
    """Find the modules that a file imports and that are not installed; return their bytes."""
    own = module.partition(".")[0]
    found: dict[str, bytes] = {}
    pending = [(source, module)]
    while pending:
        source, module = pending.pop()
        for name in _list_imports(source, module):
            file = _source_file(name)
            if name not in found and file and (name.partition(".")[0] == own or _is_loose(file)):
                found[name] = read_imported(name, file)
                pending.append((found[name], name))
    return found


def hash_definition(one: FunctionType | type) -> dict[str, str]:
    """Return the SHA-256 of the file of a function or class, and of what it imports.

    Nothing, where it is installed or was typed.
    """
    written = [one] if isinstance(one, FunctionType) else vars(one).values()
    files = (Path(w.__code__.co_filename) for w in written if isinstance(w, FunctionType))
    file = next((file for file in files if file.is_file() and _is_loose(file)), None)
    if file is None:
        return {}
    source = read_imported(one.__module__, file)
    own = {file.name: hashlib.sha256(source).hexdigest()}
    return own | hash_imports(source, one.__module__)


def hash_beside(script: Path) -> dict[str, str]:
    """Return the SHA-256 of the modules beside a script that it may import, by their names.

    Python looks there first. What these modules import counts too, also in functions.
    """
    found: dict[str, str] = {}
    pending = [script]
    while pending:
        try:
            nodes = [*ast.walk(ast.parse(pending.pop().read_bytes()))]
        except (SyntaxError, ValueError):
            continue
        names = [one.name for node in nodes if isinstance(node, ast.Import) for one in node.names]
        names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        for name in {one.partition(".")[0] for one in names} - {""}:
            package = script.parent / name
            inside = sorted(package.rglob("*.py")) if (package / "__init__.py").is_file() else []
            for file in inside or [script.parent / f"{name}.py"]:
                path = file.relative_to(script.parent).as_posix()
                if path not in found and file.is_file():
                    found[path] = hashlib.sha256(file.read_bytes()).hexdigest()
                    pending.append(file)
    return dict(sorted(found.items()))


def _list_imports(source: bytes, module: str) -> Iterator[str]:
    """Yield the modules that a file may import, with those above them."""
    package = getattr(sys.modules.get(module), "__package__", None) or ""
    for node in _statements(source):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom) and (package or not node.level):
            above = "." * node.level + (node.module or "")
            try:
                base = importlib.util.resolve_name(above, package) if node.level else above
            except ImportError:  # beyond the package: it is never imported
                continue
            names = [base, *(f"{base}.{one.name}" for one in node.names)]
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _statements(source: bytes) -> Iterator[ast.AST]:
    """Yield what runs when a file is imported: all but the bodies of functions."""
    try:
        pending: list[ast.AST] = [ast.parse(source)]
    except (SyntaxError, ValueError):
        return
    while pending:
        node = pending.pop()
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield node
            pending += ast.iter_child_nodes(node)


def _source_file(name: str) -> Path | None:
    """Return the file of a module that has been imported, where it is one of Python's."""
    file = getattr(sys.modules.get(name), "__file__", None)
    return Path(file) if file and Path(file).suffix == ".py" and Path(file).is_file() else None


def _is_loose(file: Path) -> bool:
    """Return whether a module lies neither in layerlab nor where Python installs packages."""
    paths = sysconfig.get_paths()
    places = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    places += [*site.getsitepackages(), site.getusersitepackages(), str(Path(__file__).parents[2])]
    return not any(file.resolve().is_relative_to(Path(one).resolve()) for one in places)
