"""A Python file of the user's own, read as bytes; nothing of it runs here."""

import ast
import hashlib
import importlib.util
import site
import sys
import sysconfig
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from types import FunctionType

from layerlab.errors import UserError
from layerlab.system.files import check_size


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
    runs: what a function imports once it is called is not seen.

    Args:
        source: of the file.
        module: what it is imported as.
    """
    own = module.partition(".")[0]
    found: dict[str, str] = {}
    pending = [(source, module)]
    while pending:
        source, module = pending.pop()
        for name in _list_imports(source, module):
            file = _source_file(name)
            if name not in found and file and (name.partition(".")[0] == own or _is_loose(file)):
                content = file.read_bytes()
                found[name] = hashlib.sha256(content).hexdigest()
                pending.append((content, name))
    return dict(sorted(found.items()))


def hash_definition(one: FunctionType | type) -> dict[str, str]:
    """Return the SHA-256 of the file of a function or class, and of what it imports.

    Nothing, where it is installed or was typed.
    """
    written = [one] if isinstance(one, FunctionType) else vars(one).values()
    files = (Path(w.__code__.co_filename) for w in written if isinstance(w, FunctionType))
    file = next((file for file in files if file.is_file() and _is_loose(file)), None)
    if file is None:
        return {}
    source = file.read_bytes()
    own = {file.name: hashlib.sha256(source).hexdigest()}
    return own | hash_imports(source, one.__module__)


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
    places += [*site.getsitepackages(), site.getusersitepackages(), str(Path(__file__).parents[1])]
    return not any(file.resolve().is_relative_to(Path(one).resolve()) for one in places)
