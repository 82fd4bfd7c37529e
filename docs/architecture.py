"""docs/architecture.md from the code: rooms by their docstrings, layers by the import rule."""

import ast
import runpy
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "layerlab"
TABLE = runpy.run_path(str(ROOT / "docs" / "table.py"))["table"]
RULE = runpy.run_path(str(ROOT / "tests" / "test_imports.py"))
# A command, and the file that it begins in.
COMMANDS = {
    "inspect": "layerlab.cli.inspect",
    "compare": "layerlab.cli.train",
    "evaluate": "layerlab.cli.evaluate",
    "adapt": "layerlab.cli.adapt",
}
CHANGES = {
    "a quantity that inspection reads": "`measures/quantities/`, one file",
    "an idea for a block": "`variants/`, by what it changes, one file; what many share: `blocks/`",
    "a model family that is read wrongly": "`observe/architecture/`",
    "a number format": "`numerics/formats/formats.py`",
    "a key of a training recipe": "`recipes/training_sections.py`",
    "a kind of file that texts come in": "`data/sources.py`, and its reader beside it",
    "a statistic of a comparison": "`experiments/statistics/`",
    "a place where runs are carried out": "`experiments/executors/`",
    "a benchmark": "`evaluation/benchmarks/catalog.py`; how it is scored: `evaluation/metrics/`",
    "a finding of a report": "`report/findings/`, one rule",
    "a language of the pages": "`report/i18n/locale/`",
    "a study of a source's claim": "`studies/`, the folder of its source",
    "an option of a command": "`cli/` (what several share: `cli/options.py`), and the function of "
    "`api/` that it calls",
}


def architecture() -> str:
    """Write the page."""
    return "\n".join(
        [
            "# Architecture",
            "",
            "Made from the code by `make docs`: each folder says in its `__init__.py` what lies in "
            "it, and the layers are the import rule of `tests/test_imports.py`.",
            "",
            "## Where a change goes",
            "",
            TABLE(("change", "place in `layerlab/`"), CHANGES.items()),
            "",
            "## Layers",
            "",
            "A part imports only from rows above its own; parts of one row do not know each other. "
            "Late imports count. No two files import each other in a circle, and no folder holds "
            f"more than {RULE['MOST']} modules. " + _never(),
            "",
            _layers(),
            "",
            "A mark says that the command reaches the part, by whatever its file imports and what "
            "that imports in turn; the number is that of modules.",
            "",
            "## Rooms",
            "",
            TABLE(("folder", "what lies in it", "modules"), _rooms()),
            "",
        ]
    )


def _never() -> str:
    never = RULE["NEVER"]
    building = ", ".join(f"`{one}`" for one in sorted(never["measures"]))
    measuring = ", ".join(f"`{one}`" for one in sorted(never) if one != "report")
    return (
        f"What measures ({measuring}) never imports what we build ({building}), and `report` reads "
        "nothing but readings: no file of it imports a tensor."
    )


def _layers() -> str:
    """Show every layer with the modules of it that each command reaches."""
    edges = RULE["graph"]()
    reached = {name: _reached(edges, start) for name, start in COMMANDS.items()}
    rows = []
    for number, row in enumerate(RULE["ROWS"], 1):
        for one in row.split():
            counts = [
                sum(RULE["part"](module) == one for module in found) for found in reached.values()
            ]
            marks = [f"● {count}" if count else "" for count in counts]
            rows.append((str(number), f"`{one}`", *marks))
    return str(TABLE(("layer", "part", *(f"`layerlab {name}`" for name in COMMANDS)), rows))


def _reached(edges: Mapping[str, set[str]], start: str) -> set[str]:
    seen, waiting = set[str](), [start]
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            waiting += edges.get(module, ())
    return seen


def _rooms() -> Iterator[tuple[str, str, str]]:
    for init in sorted(PACKAGE.rglob("__init__.py")):
        folder = init.parent
        modules = sorted(path.stem for path in folder.glob("*.py") if path.name != init.name)
        about = (ast.get_docstring(ast.parse(init.read_text("utf-8"))) or "").splitlines()[0]
        name = folder.relative_to(PACKAGE.parent).as_posix()
        yield f"`{name}`", about, ", ".join(one for one in modules if not one.startswith("__"))
