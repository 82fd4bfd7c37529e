"""A module as one file among siblings: `layerlab.a.b` becomes `.layerlab_a_b` in its imports.

transformers takes along the files that it finds by lines of that form, and no others.
"""

import ast
import importlib.util
import re
from dataclasses import dataclass

from layerlab.errors import UserError

ERRORS = "layerlab.errors"
NAMES = {
    "layerlab.model.config": "configuration_layerlab",
    "layerlab.model.modeling": "modeling_layerlab",
}


@dataclass(frozen=True)
class Sibling:
    """A module whose imports are relative.

    Attributes:
        text: its source.
        needs: dotted names of the modules that must lie beside it.
    """

    text: str
    needs: tuple[str, ...]


def file_stem(module: str) -> str:
    """Return the name that the file of a module has among its siblings.

    That of a plug-in differs from the name of the file as it was, which lies there too.
    """
    own = module.startswith(("layerlab.", "layerlab_loaded_"))
    return NAMES.get(module) or re.sub(r"\W", "_", module if own else f"layerlab_plugin.{module}")


def sibling(source: str, module: str, *, home: str) -> Sibling:
    """Make the imports of layerlab, and of the module's own package, relative.

    Args:
        module: its dotted name.
        home: the file, as an error names it.

    Raises:
        UserError: it imports one of these in a form that does not name a module and what is in it.
    """
    lines = source.split("\n")  # as Python counts: a form feed ends no line
    needs = []
    for node in ast.walk(ast.parse(source)):
        target = _target(node, module)
        if target is None:
            continue
        line = lines[node.lineno - 1]  # type: ignore[attr-defined]
        stem = file_stem(target)
        changed = re.sub(r"from\s+[\w.]+\s+import", f"from .{stem} import", line, count=1)
        if changed == line or _whole(node, target):
            raise UserError(
                f"a checkpoint cannot carry line {node.lineno} of {home}, "  # type: ignore[attr-defined]
                f"{ast.unparse(node)!r}; name the module and what is in it: type for example "
                "from layerlab.blocks.norm import RmsNorm"
            )
        lines[node.lineno - 1] = changed  # type: ignore[attr-defined]
        needs.append(target)
    return Sibling("\n".join(lines), tuple(dict.fromkeys(needs)))


def _target(node: ast.AST, module: str) -> str | None:
    """Return the module that a statement imports from, if that module has to lie beside it."""
    roots = {"layerlab", module.partition(".")[0]}
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names if alias.name.partition(".")[0] in roots]
        return names[0] if names else None
    if not isinstance(node, ast.ImportFrom):
        return None
    start = module.split(".")[: -node.level] if node.level else []
    name = ".".join([*start, *filter(None, [node.module])])
    if name == "layerlab" and [alias.name for alias in node.names] == ["UserError"]:
        return ERRORS  # its public name, which a user's file may use
    return name if node.level or name.partition(".")[0] in roots else None


def _whole(node: ast.AST, target: str) -> bool:
    """Return whether a statement imports whole modules, or imports from a package."""
    found = importlib.util.find_spec(target) if target else None
    return found is None or found.submodule_search_locations is not None
